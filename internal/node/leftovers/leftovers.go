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

// Options are the settings and the collaborators of a search.
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

// Rebuild creates records for volumes that are not in the journal, if volumesInUse names them, or if
// the API has them and their directories exist. The phases in these records are uncertain, so drivers
// repeat or undo the steps. Directories of a Pod whose condition does not say that its volumes are
// mounted are ignored, unless records were lost. It returns whether all records are complete.
func Rebuild(o Options, node *corev1.Node, recordsLost bool) bool {
	points, err := mount.Below(o.Root)
	if err != nil {
		o.Log.Error("lost records are not searched for", "err", err)
		return false
	}
	s := search{
		Options: o, recordsLost: recordsLost, targets: map[string][]string{}, mounted: map[string]mount.Point{},
		users: map[string][]*corev1.Pod{},
	}
	for _, p := range points {
		s.mounted[p.Path] = p
	}
	s.scan()
	complete := true
	for key, inline := range s.candidates(node) {
		driver, handle, _ := strings.Cut(key, "^")
		before := s.Journal.Get(key)
		r := s.rebuild(driver, handle, inline)
		switch {
		case r == nil:
		case before == nil:
			complete = s.adopt(r) && complete
		default:
			// A mount that is not in the record is newer than the record.
			n := len(before.Targets)
			for _, t := range r.Targets {
				if _, mounted := s.mounted[t.Path]; mounted && before.Target(t.Path) == nil {
					before.Targets = append(before.Targets, t)
				}
			}
			if len(before.Targets) > n {
				complete = s.adopt(before) && complete
			}
		}
	}
	o.report(node, unknownMounts(o, points))
	return complete
}

// search is the state of one Rebuild.
type search struct {
	Options
	// recordsLost says that records of unknown volumes were lost.
	recordsLost bool
	// targets are the UIDs of the Pods that have a directory or a device for a volume, by the volume's name.
	targets map[string][]string
	// mounted is the mount table below the root directory, by path.
	mounted map[string]mount.Point
	// users are the Pods that use a volume, by its key.
	users map[string][]*corev1.Pod
}

// adopt writes a rebuilt record to the journal, and says whether that succeeded.
func (s search) adopt(r *decide.Record) bool {
	if err := s.Journal.Put(r); err != nil {
		s.Log.Error("lost record is not rebuilt", "volume", r.Key(), "err", err)
		return false
	}
	s.Log.Warn("volume is on the node but not in the journal, its record is rebuilt", "volume", r.Key(), "staged",
		r.StagingPath, "targets", len(r.Targets))
	return true
}

// scan reads all directories once, to be fast with many volumes.
func (s search) scan() {
	pods := filepath.Join(s.Root, "pods")
	for _, uid := range entries(pods) {
		for _, volume := range entries(filepath.Dir(filepath.Dir(uses.TargetPath(s.Root, uid, "x", false)))) {
			s.targets[volume] = append(s.targets[volume], uid)
		}
	}
	devices := filepath.Dir(filepath.Dir(uses.TargetPath(s.Root, "x", "x", true)))
	for _, volume := range entries(devices) {
		s.targets[volume] = append(s.targets[volume], entries(filepath.Join(devices, volume))...)
	}
}

// entries returns the names in a directory, none if it cannot be read.
func entries(dir string) []string {
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

// candidates returns the keys of the volumes that may be on the node, with the use of each inline volume.
func (s search) candidates(node *corev1.Node) map[string]*uses.Use {
	all := map[string]*uses.Use{}
	for _, n := range node.Status.VolumesInUse {
		if driver, handle, ok := uses.Split(n); ok {
			all[volume.Key(driver, handle)] = nil
		}
	}
	for _, pv := range s.Volumes.List() {
		if s.hasDirectories(pv) {
			all[volume.Key(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)] = nil
		}
	}
	for _, pod := range s.Pods.List() {
		for _, u := range s.Finder.Of(pod) {
			if u.PV == nil {
				continue
			}
			s.users[u.Key()] = append(s.users[u.Key()], pod)
			if u.Inline && s.mayBelongTo(pod) {
				all[u.Key()] = &u
			}
		}
	}
	return all
}

// hasDirectories says whether a volume has a staging or target directory.
func (s search) hasDirectories(pv *corev1.PersistentVolume) bool {
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

// mayBelongTo says whether directories of a Pod may hold mounts of this agent; those of a missing Pod may.
func (s search) mayBelongTo(pod *corev1.Pod) bool {
	return s.recordsLost || pod == nil || cluster.Mounted(pod)
}

// rebuild returns the record of a volume according to its directories, or nil if it has none. inline is the use if the
// volume is inline.
func (s search) rebuild(driver, handle string, inline *uses.Use) *decide.Record {
	r := &decide.Record{Driver: driver, Handle: handle, LabelUnknown: true}
	if inline != nil {
		r.Volume, r.Ephemeral = inline.PV.Name, true
		r.AddSecrets(inline.PV)
		s.addTarget(r, inline.PV, string(inline.Pod.UID))
	}
	staging := uses.StagingPath(s.Root, driver, handle, "", false)
	objects := s.Volumes.By(cluster.VolumesByHandle, r.Key())
	for _, pv := range objects {
		if s.addObject(r, pv) {
			staging = uses.StagingPath(s.Root, driver, handle, pv.Name, r.Block)
		}
	}
	if len(objects) == 0 && inline == nil {
		r.SecretsUnknown = true
		s.addTargetsOf(r, staging)
	}
	if s.mayBeStaged(r) && exists(staging) {
		r.Stage, r.StagingPath = decide.Staging, staging
		if len(r.Targets) == 0 && len(objects) > 1 {
			// It is unknown with which of them it was staged, so no Pod gets it as it is.
			r.Stage = decide.Unstaging
		}
	}
	if r.Stage == "" && len(r.Targets) == 0 {
		return nil
	}
	return r
}

// addObject adds what one of a volume's PersistentVolumes has in use, and says whether the record names that one: the
// first, or one through which a Pod has the volume.
func (s search) addObject(r *decide.Record, pv *corev1.PersistentVolume) bool {
	before := len(r.Targets)
	for _, uid := range s.targets[pv.Name] {
		s.addTarget(r, pv, uid)
	}
	named := r.Volume == "" || len(r.Targets) > before
	if named {
		r.Volume, r.Block = pv.Name, uses.IsBlock(pv)
	}
	r.AddSecrets(pv)
	return named
}

// mayBeStaged says whether the staging directory of a volume may hold a mount of this agent.
func (s search) mayBeStaged(r *decide.Record) bool {
	users := s.users[r.Key()]
	return s.recordsLost || len(users) == 0 || len(r.Targets) > 0 || slices.ContainsFunc(users, cluster.Mounted)
}

// addTarget adds the target of a volume for a Pod, if it may have one.
func (s search) addTarget(r *decide.Record, pv *corev1.PersistentVolume, uid string) {
	block := uses.IsBlock(pv)
	path := uses.TargetPath(s.Root, uid, pv.Name, block)
	if pod, _ := s.Pods.ByUID(uid); s.mayBelongTo(pod) && (exists(path) || !block && exists(filepath.Dir(path))) {
		r.Targets = append(r.Targets, s.target(uid, path))
	}
}

// addTargetsOf adds the targets that show the same filesystem as the staging path, for a volume whose object is gone.
func (s search) addTargetsOf(r *decide.Record, staging string) {
	staged, mounted := s.mounted[staging]
	if !mounted {
		return
	}
	for name, uids := range s.targets {
		for _, uid := range uids {
			path := uses.TargetPath(s.Root, uid, name, false)
			_, known := s.Volumes.Get(name)
			if pod, _ := s.Pods.ByUID(uid); !known && s.mayBelongTo(pod) && s.mounted[path].Device == staged.Device {
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
