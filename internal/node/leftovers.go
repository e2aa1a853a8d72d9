package node

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
)

// rebuild makes records for volumes that the journal does not know and that have
// left directories here. When records were lost, that may be all that the Node
// says are in use and all that living Pods want. Otherwise it is those that Pods
// were told they have: what is there for others is somebody else's. What is known
// of them is unknown, so it is repeated or undone.
func (a *Agent) rebuild(node *corev1.Node, lost bool) {
	mayHave := func(pod *corev1.Pod) bool { return lost || pod != nil && hasItsVolumes(pod) }
	for key, own := range a.mayBeLost(node, lost, mayHave) {
		if a.journal.Get(key) != nil {
			continue
		}
		driver, handle, _ := strings.Cut(key, "^")
		if r := a.found(driver, handle, own, mayHave); r != nil {
			a.adopt(r)
		}
	}
}

// adopt puts a record that was made from directories into the journal.
func (a *Agent) adopt(r *decide.Record) {
	boot, err := bootID()
	if r.Boot = boot; err == nil {
		err = a.journal.Put(r)
	}
	if err != nil {
		a.Log.Error("lost record is not rebuilt", "volume", r.Key(), "err", err)
		return
	}
	a.Log.Warn("volume is in use and not in the journal, its record is made from its directories", "volume", r.Key(), "targets", len(r.Targets))
}

// adoptLeft makes records for what stays mounted of volumes that the Node says
// are in use: they would be detached otherwise, for nobody else knows of them.
func (a *Agent) adoptLeft(node *corev1.Node, stays map[string]bool) {
	for _, n := range node.Status.VolumesInUse {
		driver, handle, ok := split(n)
		if !ok || len(stays) == 0 || a.journal.Get(decide.Key(driver, handle)) != nil {
			continue
		}
		r := a.found(driver, handle, nil, func(*corev1.Pod) bool { return true })
		if r == nil {
			continue
		}
		r.Targets = slices.DeleteFunc(r.Targets, func(t decide.Target) bool { return !stays[t.Path] })
		if !stays[r.StagingPath] {
			r.Stage, r.StagingPath = "", ""
		}
		if r.Stage != "" || len(r.Targets) > 0 {
			a.adopt(r)
		}
	}
}

func hasItsVolumes(pod *corev1.Pod) bool {
	c := condition(pod)
	return c != nil && c.Status == corev1.ConditionTrue
}

// mayBeLost returns the volumes that may be here; with each inline one the use
// that it is.
func (a *Agent) mayBeLost(node *corev1.Node, lost bool, mayHave func(*corev1.Pod) bool) map[string]*use {
	all := map[string]*use{}
	for _, n := range node.Status.VolumesInUse {
		if driver, handle, ok := split(n); ok && lost {
			all[decide.Key(driver, handle)] = nil
		}
	}
	for _, pod := range a.pods.List() {
		if !mayHave(pod) {
			continue
		}
		for _, u := range a.uses(pod) {
			switch {
			case u.pv == nil:
			case u.Inline:
				all[u.key()] = &u
			case alive(pod) || !lost:
				all[u.key()] = nil
			}
		}
	}
	return all
}

// found returns the record of a volume as its directories tell it, or nil when
// there are none.
func (a *Agent) found(driver, handle string, own *use, mayHave func(*corev1.Pod) bool) *decide.Record {
	r := &decide.Record{Driver: driver, Handle: handle}
	if own != nil {
		r.Volume, r.Ephemeral = own.pv.Name, true
		path := targetPath(a.RootDir, string(own.Pod.UID), r.Volume, false)
		if _, err := os.Lstat(filepath.Dir(path)); err == nil {
			r.Targets = append(r.Targets, a.foundTarget(string(own.Pod.UID), path))
		}
	}
	staging := stagingPath(a.RootDir, driver, handle, "", false)
	for _, pv := range a.volumes.By(kube.VolumesByHandle, decide.Key(driver, handle)) {
		r.Volume, r.Block = pv.Name, isBlock(pv)
		staging = stagingPath(a.RootDir, driver, handle, pv.Name, r.Block)
		for _, uid := range a.foundPods(pv.Name, r.Block) {
			if pod, _ := a.pods.ByUID(uid); mayHave(pod) {
				r.Targets = append(r.Targets, a.foundTarget(uid, targetPath(a.RootDir, uid, pv.Name, r.Block)))
			}
		}
	}
	if _, err := os.Lstat(staging); err == nil {
		r.Stage, r.StagingPath = decide.Staging, staging
	}
	if r.Stage == "" && len(r.Targets) == 0 {
		return nil
	}
	return r
}

// foundPods returns the UIDs of the Pods that have a directory for a volume.
func (a *Agent) foundPods(pv string, block bool) []string {
	parent := filepath.Join(a.RootDir, "pods")
	if block {
		parent = filepath.Dir(targetPath(a.RootDir, "x", pv, true))
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		dir := filepath.Dir(targetPath(a.RootDir, e.Name(), pv, false))
		if _, err := os.Lstat(dir); block || err == nil {
			out = append(out, e.Name())
		}
	}
	return out
}

func (a *Agent) foundTarget(uid, path string) decide.Target {
	t := decide.Target{PodUID: uid, Path: path, Phase: decide.Publishing}
	if pod, ok := a.pods.ByUID(uid); ok {
		t.PodNamespace, t.PodName = pod.Namespace, pod.Name
	}
	return t
}

// orphans unmounts what only this agent can have mounted and nobody owns: no
// record, and no living Pod that could be using it. It returns the paths of those
// that stay.
func (a *Agent) orphans(ctx context.Context) map[string]bool {
	stays := map[string]bool{}
	points, err := mount.Below(a.RootDir)
	if err != nil {
		a.Log.Error("mounts that nobody owns are not looked for", "err", err)
		return stays
	}
	owned := a.ownedPaths()
	for _, p := range slices.Backward(points) {
		uid, ok := csiPath(a.RootDir, p.Path)
		if !ok || owned[p.Path] {
			continue
		}
		if pod, found := a.pods.ByUID(uid); uid != "" && found && alive(pod) {
			continue
		}
		unmount := mount.Unmount
		if a.liveness.Dead(ctx, p.Path) {
			unmount = mount.Detach
		}
		if err := unmount(p.Path); err != nil {
			a.Log.Error("mount that nobody owns stays", "path", p.Path, "err", err)
			stays[p.Path] = true
			continue
		}
		a.Log.Warn("mount that nobody owns was taken away", "path", p.Path, "source", p.Source)
		if uid == "" {
			a.tidy(p.Path, filepath.Dir(p.Path))
			continue
		}
		a.tidyTarget(p.Path)
	}
	return stays
}

// ownedPaths returns the paths that records name, and those at which living
// Pods' volumes are staged.
func (a *Agent) ownedPaths() map[string]bool {
	owned := map[string]bool{}
	for _, r := range a.journal.List() {
		owned[r.StagingPath] = true
		for _, t := range r.Targets {
			owned[t.Path] = true
		}
	}
	for _, pod := range a.pods.List() {
		if !alive(pod) {
			continue
		}
		for _, u := range a.uses(pod) {
			if u.pv != nil {
				owned[stagingPath(a.RootDir, u.pv.Spec.CSI.Driver, u.pv.Spec.CSI.VolumeHandle, u.pv.Name, isBlock(u.pv))] = true
			}
		}
	}
	return owned
}
