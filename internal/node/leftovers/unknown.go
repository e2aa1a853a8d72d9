package leftovers

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
)

// repeatAfter is when it is told once more of what stays unknown, before the event of
// the last time is gone.
const repeatAfter = 30 * time.Minute

// Unknown tells of mounts that no record names while the agent runs. One goroutine at a
// time uses it.
type Unknown struct {
	Options
	// Node returns the Node that is told.
	Node func() (*corev1.Node, bool)

	// seen are the mounts that the last look found, by path, told is what the Node was
	// told last, and when.
	seen map[string]int
	told []string
	at   time.Time
}

// Look holds a mount table that was just read against the journal. A mount counts when
// two looks in a row have seen it: what is being taken away may be in the table still
// and in the journal no more.
func (u *Unknown) Look(points map[string]mount.Point) {
	seen, stays := map[string]int{}, []string(nil)
	for _, path := range unknown(u.Options, slices.Collect(maps.Values(points))) {
		seen[path] = points[path].ID
		if u.seen[path] == points[path].ID {
			stays = append(stays, path)
		}
	}
	u.seen = seen
	slices.Sort(stays)
	if slices.Equal(stays, u.told) && time.Since(u.at) < repeatAfter {
		return
	}
	node, ok := u.Node()
	if !ok {
		return
	}
	u.told, u.at = stays, time.Now()
	u.name(node, stays)
}

// name tells the Node of the mounts that are not known.
func (o Options) name(node *corev1.Node, paths []string) {
	if len(paths) == 0 {
		return
	}
	slices.Sort(paths)
	o.Log.Error("nobody knows which volumes are mounted here, they stay", "paths", paths)
	o.Events.Warn(node, decide.Unknown(paths))
}

// unknown returns where something is mounted that only this agent's drivers can have
// mounted and that nobody owns: no record, no living Pod that could be using it, and no
// object that says which volume it is. It is not unmounted beneath its driver, which
// may count it.
func unknown(o Options, points []mount.Point) []string {
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

// ownedPaths returns the paths that records name, and those at which living
// Pods' volumes are staged.
func ownedPaths(o Options) map[string]bool {
	owned := map[string]bool{}
	for _, r := range o.Journal.List() {
		owned[r.StagingPath] = true
		for _, t := range r.Targets {
			owned[t.Path] = true
		}
	}
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
