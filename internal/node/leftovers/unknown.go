package leftovers

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/journal"
	"volplane.dev/volplane/internal/node/uses"
)

// repeatAfter is when unknown mounts are reported again, before the last event expires.
const repeatAfter = 30 * time.Minute

// UnknownMounts reports mounts that no record explains while the agent runs. It is used by one
// goroutine at a time.
type UnknownMounts struct {
	Options
	// Node returns the Node at which they are reported.
	Node func() (*corev1.Node, bool)
	// Count receives how many there are.
	Count func(unknown int)

	// seen are the ids of the unknown mounts in the last check, by path.
	seen map[string]int
	// reported are the paths of the last report.
	reported []string
	// at is the time of the last report.
	at time.Time
}

// Check compares a new mount table with the journal. It reports a mount that is unknown in two
// consecutive checks, because an unmount that is in flight may have left the journal first.
func (u *UnknownMounts) Check(points map[string]mount.Point) {
	seen, stays := map[string]int{}, []string(nil)
	for _, path := range unknownMounts(u.Options, slices.Collect(maps.Values(points))) {
		seen[path] = points[path].ID
		if u.seen[path] == points[path].ID {
			stays = append(stays, path)
		}
	}
	u.seen = seen
	u.Count(len(stays))
	slices.Sort(stays)
	if slices.Equal(stays, u.reported) && time.Since(u.at) < repeatAfter {
		return
	}
	node, ok := u.Node()
	if !ok {
		return
	}
	u.reported, u.at = stays, time.Now()
	u.report(node, stays)
}

// report records unknown mounts at the Node.
func (o Options) report(node *corev1.Node, paths []string) {
	if len(paths) == 0 {
		return
	}
	slices.Sort(paths)
	o.Log.Error("unknown mounts stay, it is not known which volumes they are", "paths", paths)
	o.Events.Warn(node, decide.UnknownMounts(paths))
}

// unknownMounts returns the paths of mounts that only drivers of this agent can have made, without any explanation: no
// record, no running Pod that may use them, and no object that identifies the volume. The agent does not unmount them,
// because their driver may count its mounts.
func unknownMounts(o Options, points []mount.Point) []string {
	owned := ownedPaths(o)
	var out []string
	for _, p := range points {
		uid, ok := uses.IsOwn(o.Root, p.Path)
		if !ok || owned[p.Path] {
			continue
		}
		if pod, found := o.Pods.ByUID(uid); uid != "" && found && uses.Alive(pod) {
			continue
		}
		out = append(out, p.Path)
	}
	return out
}

// Unexplained says whether anything below the root directory has no record: then only all volumes of the API can show
// which volume it belongs to.
func Unexplained(root string, j *journal.Journal) bool {
	recorded := recordedPaths(j)
	for _, shape := range uses.OwnShapes() {
		// The directory of a target may exist without it.
		shape, target := strings.CutSuffix(shape, "/mount")
		// Only a malformed shape is an error.
		found, _ := fs.Glob(os.DirFS(root), shape)
		for _, path := range found {
			if target {
				path += "/mount"
			}
			if !recorded[filepath.Join(root, path)] {
				return true
			}
		}
	}
	return false
}

// recordedPaths returns the paths in records.
func recordedPaths(j *journal.Journal) map[string]bool {
	all := map[string]bool{}
	for _, r := range j.List() {
		all[r.StagingPath] = true
		for _, t := range r.Targets {
			all[t.Path] = true
		}
	}
	return all
}

// ownedPaths returns the paths in records, and the staging paths of running Pods' volumes.
func ownedPaths(o Options) map[string]bool {
	owned := recordedPaths(o.Journal)
	for _, pod := range o.Pods.List() {
		if !uses.Alive(pod) {
			continue
		}
		for _, u := range o.Finder.Of(pod) {
			if u.PV != nil {
				owned[uses.StagingPath(o.Root, u.PV.Spec.CSI.Driver, u.PV.Spec.CSI.VolumeHandle, u.PV.Name,
					uses.IsBlock(u.PV))] = true
			}
		}
	}
	return owned
}
