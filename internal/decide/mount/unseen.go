package mount

import (
	"slices"

	"volplane.dev/volplane/internal/volume"
)

// Unmounted says whether the journal has the volume published at a path where the mount table has
// nothing.
func (f Facts) Unmounted(path string) bool {
	t := f.Record.Target(path)
	return f.Verify && t != nil && t.Phase == Published && !f.Mounted[path]
}

// stagingUnmounted is Unmounted for the staging path.
func (f Facts) stagingUnmounted() bool {
	r := f.Record
	return f.Verify && r != nil && r.Stage == Staged && r.StagingMounted && !f.Mounted[r.StagingPath]
}

// stagingCovered returns the staging path if another filesystem is mounted there.
func (f Facts) stagingCovered() (path string, covered bool) {
	if f.Record == nil || !f.Verify || f.Covered[f.Record.StagingPath] == "" {
		return "", false
	}
	return f.Record.StagingPath, true
}

// ended says that a user has ended a Pod by unmounting its host path, if the Pod allows that. If the volume is not
// published either, as after a boot, the missing mount does not mean that.
func (f Facts) ended(c Consumer) bool {
	return f.Verify && c.UnmountEnds && f.Record.Target(c.Path).Serves(c.HostPath) && f.Mounted[c.Path] &&
		!f.Dead[c.Path] && f.Bare[c.HostPath]
}

// remounts says whether an action replaces a mount that a user has unmounted.
func (f Facts) remounts(a Action) bool {
	switch t := f.Record.Target(a.Path); {
	case a.Verb == Stage:
		return f.stagingUnmounted()
	case t == nil:
		return false
	case a.Verb == Bind:
		return t.HostPhase == Bound && !f.Mounted[t.HostPath]
	default:
		return f.Unmounted(a.Path)
	}
}

// Unseen returns the path at which a Pod does not see the volume although something is mounted there: a
// dead mount, or another filesystem that covers it. It is "" if the Pod sees the volume.
func (f Facts) Unseen(c Consumer) string {
	for _, path := range []string{c.Path, c.HostPath} {
		if f.Verify && path != "" && (f.Dead[path] || f.Covered[path] != "") {
			return path
		}
	}
	return ""
}

// unseen returns the plan for Pods that do not see their volume, if no action changes that.
func (p *planner) unseen(wanted []Consumer) (Plan, bool) {
	for _, c := range wanted {
		switch path := p.f.Unseen(c); {
		case path == "":
		case p.f.Covered[path] != "":
			return p.covered(path), true
		default:
			return p.deadStays(), true
		}
	}
	return Plan{}, false
}

// deadOnHost says whether a target is alive but its bind mount at the host path is dead.
func (f Facts) deadOnHost(t Target) bool {
	return f.Verify && f.Mounted[t.Path] && !f.Dead[t.Path] && f.Dead[t.HostPath]
}

// unmounted explains that a volume is mounted again which another program has unmounted.
func (p *planner) unmounted() Plan {
	if !slices.ContainsFunc(p.actions, func(a Action) bool { return a.Verb != Stage && p.f.remounts(a) }) {
		return p.plan(volume.ReasonMountBroken, p.next,
			"the staged mount of volume %s on node %s is gone, because another program has unmounted it; it is mounted again",
			p.f.Volume, p.f.Node)
	}
	return p.plan(volume.ReasonMountBroken, p.next, "the mount of volume %s on node %s is gone, because another "+
		"program has unmounted it; it is mounted again. Processes that were started before may not see the new mount: "+
		"restart them",
		p.f.Volume, p.f.Node)
}

func (p *planner) covered(path string) Plan {
	return p.plan(volume.ReasonMountBroken, volume.Administrator(p.f.Node),
		"on node %s %s is mounted over volume %s at %s, and is what Pods see there: unmount it",
		p.f.Node, p.f.Covered[path], p.f.Volume, path)
}

// deadStays says why a dead mount is not replaced.
func (p *planner) deadStays() Plan {
	var cause volume.Because
	switch f := p.f; {
	case !f.DriverReady:
		cause = p.driverMissing().Because
	case !f.Known:
		cause = volume.Sayf(volume.ReasonVolumeMissing, volume.User(), "volume %s to mount does not exist", f.Volume)
	default:
		cause = volume.Say(volume.ReasonFailedMount, volume.User(), f.Refused)
	}
	return Plan{Actions: p.actions, Because: p.f.notBack(Died, cause)}
}
