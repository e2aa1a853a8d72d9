package volumes

import (
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
)

// place is a path at which, according to a record, a filesystem of the volume is or may be mounted.
type place struct {
	path string
	// own says whether a mount may be the volume's.
	own func(mount.Point) bool
	// mounts is the number of mounts at the path and below it.
	mounts int
	// done means that the mount was made.
	done bool
}

// placesOf returns the places of a record. Devices are not mounted.
func placesOf(r *decide.Record) []place {
	of := func(filesystem string) func(mount.Point) bool {
		return func(p mount.Point) bool { return p.MayShow(filesystem) }
	}
	out := []place{{path: r.StagingPath, own: of(r.Filesystem), done: r.Stage == decide.Staged && r.StagingMounted}}
	if r.Block {
		return out
	}
	for _, t := range r.Targets {
		out = append(out, place{t.Path, of(t.Filesystem), t.Mounts, t.Phase == decide.Published})
		if t.HostPhase != decide.Bound {
			continue
		}
		bound := strings.Fields(t.HostDevice)
		out = append(out, place{t.HostPath, func(p mount.Point) bool {
			return len(bound) == 0 || slices.Contains(bound, p.Device)
		}, t.Mounts, true})
	}
	return out
}

// differences returns the paths at which the mount table does not show the recorded mount.
func differences(r *decide.Record, points map[string]mount.Point) []string {
	var out []string
	for _, at := range placesOf(r) {
		if _, mounted := points[at.path]; at.done && (!mounted || mount.CoveredBy(points, at.path, at.own) != "") {
			out = append(out, at.path)
		}
	}
	return out
}

// CheckMounts enqueues the volumes whose mounts have started or ceased to differ from the journal since
// their last reconcile.
func (v *Volumes) CheckMounts() {
	points, err := v.table.Points()
	if err != nil {
		v.Log.Warn("mount table cannot be read, changes of mounts are noticed late", "err", err)
		return
	}
	for _, r := range v.Journal.List() {
		if !slices.Equal(differences(r, points), v.outcomeOf(r.Key()).differs) {
			v.queue.Add(r.Key())
		}
	}
}
