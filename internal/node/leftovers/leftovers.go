package leftovers

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/journal"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// Options says where leftovers are looked for, and what is known of them.
type Options struct {
	// Root is the agent's root directory.
	Root    string
	Journal *journal.Journal
	Finder  *uses.Finder
	Pods    *kube.Cache[*corev1.Pod]
	Volumes cluster.Objects[*corev1.PersistentVolume]
	Events  *kube.Recorder
	Log     *slog.Logger
}

// Rebuild makes records for volumes that the journal does not know and of which
// something is here: a Node says that they are in use, or the API knows them and
// they have left directories. What is known of them is unknown, so it is repeated
// or undone, by their drivers. What is there for a Pod that was not told that it
// has its volumes is somebody else's, unless records were lost. It returns whether
// all were made that have to be.
func Rebuild(o Options, node *corev1.Node, lost bool) bool {
	points, err := mount.Below(o.Root)
	if err != nil {
		o.Log.Error("lost records are not looked for", "err", err)
		return false
	}
	s := search{
		Options: o, lost: lost, targets: map[string][]string{}, mounted: map[string]mount.Point{},
		users: map[string][]*corev1.Pod{},
	}
	for _, p := range points {
		s.mounted[p.Path] = p
	}
	s.scan()
	whole := true
	for key, own := range s.candidates(node) {
		driver, handle, _ := strings.Cut(key, "^")
		before := s.Journal.Get(key)
		r := s.found(driver, handle, own)
		switch {
		case r == nil:
		case before == nil:
			whole = s.adopt(r) && whole
		default:
			// What is mounted and not in the record came after it: the record is
			// an old one.
			n := len(before.Targets)
			for _, t := range r.Targets {
				if _, mounted := s.mounted[t.Path]; mounted && before.Target(t.Path) == nil {
					before.Targets = append(before.Targets, t)
				}
			}
			if len(before.Targets) > n {
				whole = s.adopt(before) && whole
			}
		}
	}
	o.name(node, unknown(o, points))
	return whole
}

// search is what an earlier agent has left in its directories.
type search struct {
	Options
	// lost says that records were lost, it is not known of which volumes.
	lost bool
	// targets are the UIDs of the Pods that have a directory for a volume, or a
	// device, by its name.
	targets map[string][]string
	mounted map[string]mount.Point
	// users are the Pods that use a volume, by its key.
	users map[string][]*corev1.Pod
}

// adopt puts a record that was made from directories into the journal, and says
// whether it is there.
func (s search) adopt(r *decide.Record) bool {
	if err := s.Journal.Put(r); err != nil {
		s.Log.Error("lost record is not rebuilt", "volume", r.Key(), "err", err)
		return false
	}
	s.Log.Warn("volume is here and not in the journal, its record is made from what is there", "volume", r.Key(), "staged",
		r.StagingPath, "targets", len(r.Targets))
	return true
}

func hasItsVolumes(pod *corev1.Pod) bool {
	c := uses.Mounted(pod)
	return c != nil && c.Status == corev1.ConditionTrue
}

// scan reads the directories once, however many volumes there are.
func (s search) scan() {
	pods := filepath.Join(s.Root, "pods")
	for _, uid := range names(pods) {
		for _, volume := range names(filepath.Dir(filepath.Dir(uses.TargetPath(s.Root, uid, "x", false)))) {
			s.targets[volume] = append(s.targets[volume], uid)
		}
	}
	devices := filepath.Dir(filepath.Dir(uses.TargetPath(s.Root, "x", "x", true)))
	for _, volume := range names(devices) {
		s.targets[volume] = append(s.targets[volume], names(filepath.Join(devices, volume))...)
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
func (s search) candidates(node *corev1.Node) map[string]*uses.Use {
	all := map[string]*uses.Use{}
	for _, n := range node.Status.VolumesInUse {
		if driver, handle, ok := uses.Split(n); ok {
			all[volume.Key(driver, handle)] = nil
		}
	}
	for _, pv := range s.Volumes.List() {
		if s.traces(pv) {
			all[volume.Key(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)] = nil
		}
	}
	for _, pod := range s.Pods.List() {
		for _, u := range s.Finder.Of(pod) {
			if u.PV == nil {
				continue
			}
			s.users[u.Key()] = append(s.users[u.Key()], pod)
			if u.Inline && s.mayHave(pod) {
				all[u.Key()] = &u
			}
		}
	}
	return all
}

// traces says whether anything is here under the name of a volume.
func (s search) traces(pv *corev1.PersistentVolume) bool {
	if pv.Spec.CSI == nil || !uses.IsComponent(pv.Name) || !uses.IsComponent(pv.Spec.CSI.Driver) {
		return false
	}
	return len(s.targets[pv.Name]) > 0 ||
		exists(uses.StagingPath(s.Root, pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, pv.Name, uses.IsBlock(pv)))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// mayHave says whether what is there for a Pod is its own; a Pod that is gone was
// not told anything any more.
func (s search) mayHave(pod *corev1.Pod) bool {
	return s.lost || pod == nil || hasItsVolumes(pod)
}

// found returns the record of a volume as its directories tell it, or nil when
// there are none.
func (s search) found(driver, handle string, own *uses.Use) *decide.Record {
	r := &decide.Record{Driver: driver, Handle: handle}
	if own != nil {
		r.Volume, r.Ephemeral = own.PV.Name, true
		r.SetSecrets(own.PV)
		s.publishedTo(r, own.PV.Name, string(own.Pod.UID))
	}
	staging := uses.StagingPath(s.Root, driver, handle, "", false)
	objects := s.Volumes.By(cluster.VolumesByHandle, r.Key())
	for _, pv := range objects {
		r.Volume, r.Block = pv.Name, uses.IsBlock(pv)
		r.SetSecrets(pv)
		staging = uses.StagingPath(s.Root, driver, handle, pv.Name, r.Block)
		for _, uid := range s.targets[pv.Name] {
			s.publishedTo(r, pv.Name, uid)
		}
	}
	if len(objects) == 0 && own == nil {
		r.SecretsUnknown = true
		s.publishedFrom(r, staging)
	}
	if s.mayBeStaged(r) && exists(staging) {
		r.Stage, r.StagingPath = decide.Staging, staging
	}
	if r.Stage == "" && len(r.Targets) == 0 {
		return nil
	}
	return r
}

// mayBeStaged says whether what is at the staging path of a volume is its own.
func (s search) mayBeStaged(r *decide.Record) bool {
	users := s.users[r.Key()]
	return s.lost || len(users) == 0 || len(r.Targets) > 0 || slices.ContainsFunc(users, hasItsVolumes)
}

// publishedTo adds the place where a volume is for a Pod, by its object's name.
func (s search) publishedTo(r *decide.Record, name, uid string) {
	path := uses.TargetPath(s.Root, uid, name, r.Block)
	if pod, _ := s.Pods.ByUID(uid); s.mayHave(pod) && (exists(path) || !r.Block && exists(filepath.Dir(path))) {
		r.Targets = append(r.Targets, s.target(uid, path))
	}
}

// publishedFrom adds the places where the filesystem shows that is mounted at the
// staging path of a volume whose object is gone.
func (s search) publishedFrom(r *decide.Record, staging string) {
	staged, mounted := s.mounted[staging]
	if !mounted {
		return
	}
	for name, uids := range s.targets {
		for _, uid := range uids {
			path := uses.TargetPath(s.Root, uid, name, false)
			_, known := s.Volumes.Get(name)
			if pod, _ := s.Pods.ByUID(uid); !known && s.mayHave(pod) && s.mounted[path].Device == staged.Device {
				r.Volume, r.Targets = name, append(r.Targets, s.target(uid, path))
			}
		}
	}
}

func (s search) target(uid, path string) decide.Target {
	t := decide.Target{PodUID: uid, Path: path, Phase: decide.Publishing}
	if pod, ok := s.Pods.ByUID(uid); ok {
		t.PodNamespace, t.PodName = pod.Namespace, pod.Name
	}
	return t
}
