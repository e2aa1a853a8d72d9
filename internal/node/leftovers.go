package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// rebuild makes records for volumes that the journal does not know and of which
// something is here: a Node says that they are in use, or the API knows them and
// they have left directories. What is known of them is unknown, so it is repeated
// or undone, by their drivers. What is there for a Pod that was not told that it
// has its volumes is somebody else's, unless records were lost. It returns whether
// all were made that have to be.
func (a *Agent) rebuild(node *corev1.Node, lost bool) bool {
	points, err := mount.Below(a.RootDir)
	if err != nil {
		a.Log.Error("lost records are not looked for", "err", err)
		return false
	}
	l := leftovers{a: a, lost: lost, targets: map[string][]string{}, mounted: map[string]mount.Point{}, users: map[string][]*corev1.Pod{}}
	for _, p := range points {
		l.mounted[p.Path] = p
	}
	l.scan()
	whole := true
	for key, own := range l.candidates(node) {
		driver, handle, _ := strings.Cut(key, "^")
		before := a.journal.Get(key)
		r := l.found(driver, handle, own)
		switch {
		case r == nil:
		case before == nil:
			whole = a.adopt(r) && whole
		default:
			// What is mounted and not in the record came after it: the record is
			// an old one.
			n := len(before.Targets)
			for _, t := range r.Targets {
				if _, mounted := l.mounted[t.Path]; mounted && before.Target(t.Path) == nil {
					before.Targets = append(before.Targets, t)
				}
			}
			if len(before.Targets) > n {
				whole = a.adopt(before) && whole
			}
		}
	}
	a.nameUnknown(node, points)
	return whole
}

// adopt puts a record that was made from directories into the journal, and says
// whether it is there.
func (a *Agent) adopt(r *decide.Record) bool {
	boot, err := bootID()
	if r.Boot = boot; err == nil {
		err = a.journal.Put(r)
	}
	if err != nil {
		a.Log.Error("lost record is not rebuilt", "volume", r.Key(), "err", err)
		return false
	}
	a.Log.Warn("volume is here and not in the journal, its record is made from what is there", "volume", r.Key(), "staged", r.StagingPath, "targets", len(r.Targets))
	return true
}

func hasItsVolumes(pod *corev1.Pod) bool {
	c := uses.Mounted(pod)
	return c != nil && c.Status == corev1.ConditionTrue
}

// leftovers is what an earlier agent has left in its directories.
type leftovers struct {
	a *Agent
	// lost says that records were lost, it is not known of which volumes.
	lost bool
	// targets are the UIDs of the Pods that have a directory for a volume, or a
	// device, by its name.
	targets map[string][]string
	mounted map[string]mount.Point
	// users are the Pods that use a volume, by its key.
	users map[string][]*corev1.Pod
}

// scan reads the directories once, however many volumes there are.
func (l leftovers) scan() {
	pods := filepath.Join(l.a.RootDir, "pods")
	for _, uid := range names(pods) {
		for _, volume := range names(filepath.Dir(filepath.Dir(uses.TargetPath(l.a.RootDir, uid, "x", false)))) {
			l.targets[volume] = append(l.targets[volume], uid)
		}
	}
	devices := filepath.Dir(filepath.Dir(uses.TargetPath(l.a.RootDir, "x", "x", true)))
	for _, volume := range names(devices) {
		l.targets[volume] = append(l.targets[volume], names(filepath.Join(devices, volume))...)
	}
}

// names returns what is in a directory; one that cannot be read has nothing.
func names(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// candidates returns the volumes that may be here; with each inline one the use
// that it is.
func (l leftovers) candidates(node *corev1.Node) map[string]*uses.Use {
	all := map[string]*uses.Use{}
	for _, n := range node.Status.VolumesInUse {
		if driver, handle, ok := uses.Split(n); ok {
			all[volume.Key(driver, handle)] = nil
		}
	}
	for _, pv := range l.a.volumes.List() {
		if l.traces(pv) {
			all[volume.Key(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)] = nil
		}
	}
	for _, pod := range l.a.pods.List() {
		for _, u := range l.a.finder.Of(pod) {
			if u.PV == nil {
				continue
			}
			l.users[u.Key()] = append(l.users[u.Key()], pod)
			if u.Inline && l.mayHave(pod) {
				all[u.Key()] = &u
			}
		}
	}
	return all
}

// traces says whether anything is here under the name of a volume.
func (l leftovers) traces(pv *corev1.PersistentVolume) bool {
	if pv.Spec.CSI == nil || !uses.IsComponent(pv.Name) || !uses.IsComponent(pv.Spec.CSI.Driver) {
		return false
	}
	return len(l.targets[pv.Name]) > 0 || exists(uses.StagingPath(l.a.RootDir, pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, pv.Name, uses.IsBlock(pv)))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// mayHave says whether what is there for a Pod is its own; a Pod that is gone was
// not told anything any more.
func (l leftovers) mayHave(pod *corev1.Pod) bool {
	return l.lost || pod == nil || hasItsVolumes(pod)
}

// found returns the record of a volume as its directories tell it, or nil when
// there are none.
func (l leftovers) found(driver, handle string, own *uses.Use) *decide.Record {
	r := &decide.Record{Driver: driver, Handle: handle}
	if own != nil {
		r.Volume, r.Ephemeral = own.PV.Name, true
		setSecrets(r, own.PV)
		l.publishedTo(r, own.PV.Name, string(own.Pod.UID))
	}
	staging := uses.StagingPath(l.a.RootDir, driver, handle, "", false)
	objects := l.a.volumes.By(cluster.VolumesByHandle, r.Key())
	for _, pv := range objects {
		r.Volume, r.Block = pv.Name, uses.IsBlock(pv)
		setSecrets(r, pv)
		staging = uses.StagingPath(l.a.RootDir, driver, handle, pv.Name, r.Block)
		for _, uid := range l.targets[pv.Name] {
			l.publishedTo(r, pv.Name, uid)
		}
	}
	if len(objects) == 0 && own == nil {
		r.SecretsUnknown = true
		l.publishedFrom(r, staging)
	}
	if l.mayBeStaged(r) && exists(staging) {
		r.Stage, r.StagingPath = decide.Staging, staging
	}
	if r.Stage == "" && len(r.Targets) == 0 {
		return nil
	}
	return r
}

// mayBeStaged says whether what is at the staging path of a volume is its own.
func (l leftovers) mayBeStaged(r *decide.Record) bool {
	users := l.users[r.Key()]
	return l.lost || len(users) == 0 || len(r.Targets) > 0 || slices.ContainsFunc(users, hasItsVolumes)
}

// publishedTo adds the place where a volume is for a Pod, by its object's name.
func (l leftovers) publishedTo(r *decide.Record, name, uid string) {
	path := uses.TargetPath(l.a.RootDir, uid, name, r.Block)
	if pod, _ := l.a.pods.ByUID(uid); l.mayHave(pod) && (exists(path) || !r.Block && exists(filepath.Dir(path))) {
		r.Targets = append(r.Targets, l.target(uid, path))
	}
}

// publishedFrom adds the places where the filesystem shows that is mounted at the
// staging path of a volume whose object is gone.
func (l leftovers) publishedFrom(r *decide.Record, staging string) {
	staged, mounted := l.mounted[staging]
	if !mounted {
		return
	}
	for name, uids := range l.targets {
		for _, uid := range uids {
			path := uses.TargetPath(l.a.RootDir, uid, name, false)
			_, known := l.a.volumes.Get(name)
			if pod, _ := l.a.pods.ByUID(uid); !known && l.mayHave(pod) && l.mounted[path].Device == staged.Device {
				r.Volume, r.Targets = name, append(r.Targets, l.target(uid, path))
			}
		}
	}
}

func (l leftovers) target(uid, path string) decide.Target {
	t := decide.Target{PodUID: uid, Path: path, Phase: decide.Publishing}
	if pod, ok := l.a.pods.ByUID(uid); ok {
		t.PodNamespace, t.PodName = pod.Namespace, pod.Name
	}
	return t
}

// nameUnknown names what only this agent's drivers can have mounted and nobody
// owns: no record, no living Pod that could be using it, and no object that says
// which volume it is. It is not unmounted beneath its driver, which may count it.
func (a *Agent) nameUnknown(node *corev1.Node, points []mount.Point) {
	owned := a.ownedPaths()
	var unknown []string
	for _, p := range points {
		uid, ok := uses.IsOwn(a.RootDir, p.Path)
		if !ok || owned[p.Path] {
			continue
		}
		if pod, found := a.pods.ByUID(uid); uid != "" && found && uses.Alive(pod) {
			continue
		}
		a.Log.Error("nobody knows which volume is mounted here, it stays", "path", p.Path, "source", p.Source)
		unknown = append(unknown, p.Path)
	}
	if len(unknown) > 0 {
		a.Events.Warn(node, decide.Unknown(unknown))
	}
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
		if !uses.Alive(pod) {
			continue
		}
		for _, u := range a.finder.Of(pod) {
			if u.PV != nil {
				owned[uses.StagingPath(a.RootDir, u.PV.Spec.CSI.Driver, u.PV.Spec.CSI.VolumeHandle, u.PV.Name, uses.IsBlock(u.PV))] = true
			}
		}
	}
	return owned
}
