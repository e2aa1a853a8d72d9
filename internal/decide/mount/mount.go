package mount

import (
	"slices"

	"volplane.dev/volplane/internal/volume"
)

// Facts is what the agent knows of one volume on one node.
type Facts struct {
	Driver, Handle, Volume, Node string
	// Known means that the volume's object exists.
	Known bool
	Block bool
	// Refused says why the volume may not be mounted although it exists; empty if it may.
	Refused string
	// Ephemeral says that the volume is an inline volume of a Pod, which is only published, neither
	// attached nor staged.
	Ephemeral bool
	// DriverReady says that the driver is registered; CanStage that it stages.
	DriverReady, CanStage bool
	// Absent is the reason why the driver is not registered, if it is known.
	Absent volume.Because
	// AttachRequired says that the volume must be attached first; Attached
	// that the node's volumesAttached has it.
	AttachRequired, Attached bool
	// InUse says that the node's volumesInUse has the volume.
	InUse bool
	// SinglePod says that one of the volume's objects is for one Pod only (ReadWriteOncePod).
	SinglePod bool
	// Wanted are the Pods that want the volume, in a stable order.
	Wanted []Consumer
	// Record is the journal's; nil when there is none.
	Record *Record
	// Verify says that the mount table is read, and preferred to Record.
	Verify bool
	// Mounted are the paths at which something is mounted, or at which a published device exists. Dead are those of them
	// whose filesystem will never respond again, because its server is gone.
	Mounted, Dead map[string]bool
	// Bare are the paths of the record at which nothing is mounted, not even partially.
	Bare map[string]bool
	// Covered names, by path, the filesystem that is mounted there over the volume.
	Covered map[string]string
}

// Consumer is a Pod that wants the volume at a path.
type Consumer struct {
	UID, Namespace, Name, Path string
	// Volume is the name of the PersistentVolume through which the Pod uses the volume: several may have its handle.
	Volume   string
	ReadOnly bool
	// SinglePod says that this object is for one Pod only.
	SinglePod bool
	// Apart names the PersistentVolume with which the volume is staged, if the Pod's own PersistentVolume needs different
	// staging.
	Apart string
	// Expand is the size in bytes to which the node has to grow the volume for the Pod's claim; 0 means no growth.
	Expand int64
	// HostPath is a directory of the host at which the volume is also mounted.
	HostPath string
	// HostOptions are those of the mount there.
	HostOptions BindOptions
	// UnmountEnds means that unmounting the host path by hand ends the Pod.
	UnmountEnds bool
	// Due says that a repeated call is due, because the driver has requiresRepublish.
	Due bool
	// Label is the SELinux label that the Pod requests for the mount; Refused says why the request cannot be met.
	Label, Refused string
}

// Verb names what an action does.
type Verb string

// The verbs of actions, in the order in which they can follow each other.
const (
	MarkInUse     Verb = "mark in use"
	CheckAttached Verb = "check attached"
	Stage         Verb = "stage"
	Publish       Verb = "publish"
	Bind          Verb = "bind"
	Republish     Verb = "publish again"
	Expand        Verb = "grow"
	EndUse        Verb = "end use"
	Unbind        Verb = "unbind"
	Unpublish     Verb = "unpublish"
	Unstage       Verb = "unstage"
	UnmarkInUse   Verb = "unmark in use"
	Drop          Verb = "drop journal"
)

// Action is one step. Path is the target of steps for one Pod. The journal is written before each step
// that has an effect.
type Action struct {
	Verb Verb
	Path string
}

// Plan has the actions, in order, and the reason. Actions that a failed one Blocks are skipped.
type Plan struct {
	Actions []Action
	Because volume.Because
	// Label is the SELinux label of the volume's mounts; empty if they have none.
	Label string
	// Own are the reasons of Pods that wait for something of their own, by path; never nil.
	Own map[string]volume.Because
}

// Blocks says whether a step must be skipped after another step of its plan has failed. A failure for
// one Pod does not delay others.
func Blocks(failed, next Action) bool {
	switch failed.Verb {
	case Republish, Expand:
		return false
	case Bind, EndUse:
		return next.Path == failed.Path && next.Verb != Expand
	case Publish:
		return next.Path == failed.Path
	case Unbind, Unpublish:
		return next.Path == failed.Path || next.Verb == Unstage || next.Verb == UnmarkInUse || next.Verb == Drop
	default:
		return true
	}
}

// Volume decides about one volume on one node.
func Volume(f Facts) Plan {
	if f.Ephemeral {
		f.AttachRequired, f.CanStage = false, false
	}
	p := &planner{f: f, next: volume.NodeAgent(f.Node)}
	a := f.admit()
	p.removeUnwanted(a.pods)
	var plan Plan
	if len(a.pods) > 0 {
		plan = p.mountFor(a)
	} else if plan = p.teardown(); len(plan.Actions) > 0 {
		a.own = map[string]volume.Because{} // all wait for this
	} else if a.held.Reason != "" {
		plan.Because = a.held
	}
	plan.Label, plan.Own = a.label, a.own
	return plan
}

type planner struct {
	f       Facts
	next    volume.Actor
	actions []Action
	// callsDriver says that an action calls the driver, mounting that an action is a step of a mount.
	callsDriver, mounting bool
}

func (p *planner) do(v Verb, path string) {
	p.actions = append(p.actions, Action{v, path})
	p.callsDriver = p.callsDriver || callsDriver(v)
	switch v {
	case MarkInUse, Stage, Publish, Bind, Expand:
		p.mounting = true
	}
}

// callsDriver says whether an action calls the driver.
func callsDriver(v Verb) bool {
	switch v {
	case Stage, Publish, Republish, Unpublish, Unstage, Expand:
		return true
	}
	return false
}

func (p *planner) plan(r volume.Reason, next volume.Actor, format string, args ...any) Plan {
	return Plan{Actions: p.actions, Because: volume.Sayf(r, next, format, args...)}
}

// driverMissing returns the plan without the actions that need the driver, which is not registered.
func (p *planner) driverMissing() Plan {
	p.actions = p.withoutDriver()
	if p.f.Absent.Reason != "" {
		return Plan{Actions: p.actions, Because: p.f.Absent}
	}
	plan := p.plan(volume.ReasonDriverMissing, volume.Driver(p.f.Driver),
		"driver %s is not registered on node %s", p.f.Driver, p.f.Node)
	plan.Because.Node = p.f.Node
	return plan
}

// withoutDriver returns the actions before the first call of the driver.
func (p *planner) withoutDriver() []Action {
	for i, a := range p.actions {
		if callsDriver(a.Verb) {
			return p.actions[:i]
		}
	}
	return p.actions
}

// removeUnwanted unpublishes the volume from Pods that do not want it any more, completes unmounts that
// have started, removes dead mounts that can be replaced, and ends uses that were unmounted by hand.
func (p *planner) removeUnwanted(wanted []Consumer) {
	if p.f.Record == nil {
		return
	}
	staging := p.f.stagingRenewable()
	for _, t := range p.f.Record.Targets {
		c, keep := consumerAt(wanted, t.Path)
		keep = keep && t.Phase != Unpublishing && !staging && !p.f.renewable(t.Path)
		if t.HostPhase != "" && (!keep || c.HostPath != t.HostPath || t.HostPhase == Unbinding || p.f.deadOnHost(t)) {
			p.do(Unbind, t.Path)
		}
		if !keep {
			p.do(Unpublish, t.Path)
		}
	}
	p.endUses(wanted)
}

// endUses ends the uses whose host paths were unmounted by hand, if that is meant to end them.
func (p *planner) endUses(wanted []Consumer) {
	for _, c := range wanted {
		if p.f.ended(c) {
			p.do(EndUse, c.Path)
		}
	}
}

// renewable says whether the mount at a path is dead and can be replaced. If it cannot, it stays,
// because a Pod may still use open files.
func (f Facts) renewable(path string) bool {
	return f.Verify && f.Dead[path] && f.Known && f.Refused == "" && f.DriverReady
}

func consumerAt(wanted []Consumer, path string) (Consumer, bool) {
	for _, c := range wanted {
		if c.Path == path {
			return c, true
		}
	}
	return Consumer{}, false
}

// teardown removes the volume from the node. NodeUnstageVolume comes after every NodeUnpublishVolume,
// and the entry in volumesInUse is removed last, because the detach waits for that.
func (p *planner) teardown() Plan {
	r := p.f.Record
	if r != nil && r.Stage != "" {
		p.do(Unstage, "")
	}
	if p.f.InUse && !p.f.Ephemeral {
		p.do(UnmarkInUse, "")
	}
	if r != nil {
		p.do(Drop, "")
	}
	switch {
	case len(p.actions) == 0:
		return p.plan(volume.ReasonNothingToDo, volume.Actor{}, "volume %s is not on node %s and no Pod there needs it",
			p.f.Volume, p.f.Node)
	case p.callsDriver && !p.f.DriverReady:
		return p.driverMissing()
	default:
		return p.plan(volume.ReasonUnmounting, p.next, "no Pod on node %s needs volume %s", p.f.Node, p.f.Volume)
	}
}

// stagingRenewable says whether the staged mount is dead and can be replaced, and no Pod has a working mount: such a
// mount takes precedence over a new Pod.
func (f Facts) stagingRenewable() bool {
	r := f.Record
	return r.Stage == Staged && f.renewable(r.StagingPath) &&
		!slices.ContainsFunc(r.Targets, func(t Target) bool { return f.Mounted[t.Path] && !f.Dead[t.Path] })
}

// mountFor mounts the volume for the Pods that want it. Unmounts come first; they delay no Pod unless only one Pod may
// have the volume.
func (p *planner) mountFor(a admission) Plan {
	r, wanted := p.f.Record, a.pods
	switch {
	case a.remount && r.Stage == "":
		return p.awaitRemoval()
	case a.remount, r != nil && (r.unstageFirst() || p.f.stagingRenewable() || p.f.stagingGivenUp()):
		p.do(Unstage, "")
		return p.awaitRemoval()
	case p.f.SinglePod && len(p.actions) > 0, p.callsDriver && !p.f.DriverReady:
		return p.awaitRemoval()
	}
	if plan, wait := p.addMounts(wanted); wait {
		return plan
	}
	return p.addRepublish(p.grow(wanted, a.held), wanted)
}

// unstageFirst says that a volume whose unstaging has begun must be unstaged before it is staged again. If the driver
// has refused to unstage it, perhaps because of a process that never ends, the volume is staged as it is, as kubelets
// do: NodeStageVolume is idempotent.
func (r *Record) unstageFirst() bool { return r.Stage == Unstaging && !r.UnstageRefused }

// addMounts adds the actions that mount the volume, or returns the plan if they have to wait.
func (p *planner) addMounts(wanted []Consumer) (Plan, bool) {
	publish := p.f.publishNeeded(wanted)
	stage := p.f.stageNeeded(len(publish) > 0)
	if path, covered := p.f.stagingCovered(); covered && (stage || len(publish) > 0) {
		// The driver would show Pods the other filesystem.
		return p.plan(volume.ReasonMountBroken, volume.Administrator(p.f.Node),
			"on node %s %s is mounted over the staged volume %s at %s: no further Pod gets the volume until that is unmounted",
			p.f.Node, p.f.Covered[path], p.f.Volume, path), true
	}
	if stage || len(publish) > 0 {
		if plan, wait := p.prepare(); wait {
			return plan, true
		}
	} else {
		p.markInUse()
	}
	if stage {
		p.do(Stage, "")
	}
	for _, c := range publish {
		p.do(Publish, c.Path)
	}
	for _, c := range p.f.bindNeeded(wanted) {
		p.do(Bind, c.Path)
	}
	return Plan{}, false
}

func (p *planner) markInUse() {
	if !p.f.InUse && !p.f.Ephemeral {
		p.do(MarkInUse, "")
	}
}

// awaitRemoval returns the plan that only removes mounts; the volume is reconciled again afterwards
// with new facts.
func (p *planner) awaitRemoval() Plan {
	if p.callsDriver && !p.f.DriverReady {
		return p.driverMissing()
	}
	if p.f.stagingRenewable() {
		return p.broken()
	}
	return p.unmounting()
}

func (p *planner) unmounting() Plan {
	return p.plan(volume.ReasonUnmounting, p.next, "volume %s is unpublished from Pods on node %s that no longer need it",
		p.f.Volume, p.f.Node)
}

func (p *planner) broken() Plan {
	return p.plan(volume.ReasonMountBroken, p.next,
		"the mount of volume %s on node %s is dead, because its server is gone; it is mounted again", p.f.Volume, p.f.Node)
}

// addRepublish adds a call for each target at which requiresRepublish makes one due.
func (p *planner) addRepublish(plan Plan, wanted []Consumer) Plan {
	if !p.f.DriverReady || !p.f.Known || p.f.Refused != "" {
		return plan
	}
	for _, c := range wanted {
		if c.Due && c.Apart == "" && !slices.Contains(plan.Actions, Action{Publish, c.Path}) && p.f.Covered[c.Path] == "" {
			plan.Actions = append(plan.Actions, Action{Republish, c.Path})
		}
	}
	return plan
}

// prepare checks what must be true before the driver is called. volumesInUse is written before the
// attachment is read: otherwise a detach that starts in between would not see the entry.
func (p *planner) prepare() (Plan, bool) {
	if !p.f.Known {
		return p.refuse(volume.Sayf(volume.ReasonVolumeMissing, volume.User(),
			"volume %s to mount does not exist", p.f.Volume)), true
	}
	if !p.f.DriverReady && p.f.Absent.Reason != "" {
		return p.driverMissing(), true // what it would refuse is unknown until it is registered
	}
	if p.f.Refused != "" {
		return p.refuse(volume.Say(volume.ReasonFailedMount, volume.User(), p.f.Refused)), true
	}
	p.markInUse()
	if !p.f.DriverReady {
		return p.driverMissing(), true
	}
	if !p.f.AttachRequired {
		return Plan{}, false
	}
	// What was published once is still attached: volumesInUse keeps it so.
	if !p.f.Attached {
		return p.plan(volume.ReasonWaitForAttach, volume.Controller("attacher"), "volume %s is not attached to "+
			"node %s yet", p.f.Volume, p.f.Node), true
	}
	p.do(CheckAttached, "")
	return Plan{}, false
}

// refuse returns the plan without the mounts that may not be made.
func (p *planner) refuse(cause volume.Because) Plan {
	return Plan{Actions: p.actions, Because: p.f.NotBack(Action{}, cause)}
}

func (p *planner) grow(wanted []Consumer, held volume.Because) Plan {
	f := p.f
	for _, c := range f.growNeeded(wanted) {
		p.do(Expand, c.Path)
	}
	switch {
	case slices.ContainsFunc(p.actions, func(a Action) bool { return f.renewable(a.Path) }):
		return p.broken()
	case slices.ContainsFunc(p.actions, f.remounts):
		return p.unmounted()
	case p.mounting:
		return p.plan(volume.ReasonMounting, p.next, "volume %s is being mounted on node %s", f.Volume, f.Node)
	case len(p.actions) > 0:
		return p.unmounting()
	}
	if plan, wrong := p.unseen(wanted); wrong {
		return plan
	}
	if held.Reason != "" {
		return Plan{Because: held}
	}
	return p.plan(volume.ReasonMounted, volume.Actor{}, "volume %s is mounted on node %s", f.Volume, f.Node)
}

// growNeeded returns a Pod of each object for whose claim the node has to expand the volume. CSI forbids repeating a
// refused expansion before something has changed, so it waits for the next mount.
func (f Facts) growNeeded(wanted []Consumer) []Consumer {
	if !f.DriverReady || !f.Known || len(f.Covered) > 0 {
		return nil
	}
	var out []Consumer
	for _, c := range wanted {
		same := func(o Consumer) bool { return o.Volume == c.Volume }
		if c.Expand > 0 && (f.Record == nil || f.Record.ExpandRefused < c.Expand) && !slices.ContainsFunc(out, same) {
			out = append(out, c)
		}
	}
	return out
}

// stagingGivenUp says that the outcome of staging is unknown, and that the driver has come back without that
// capability: it is not called again, and whatever it may have mounted is removed.
func (f Facts) stagingGivenUp() bool {
	return f.Record.Stage == Staging && f.DriverReady && !f.CanStage
}

func (f Facts) stageNeeded(publish bool) bool {
	r := f.Record
	switch {
	case r == nil || r.Stage == "":
		return f.CanStage && publish
	case r.Stage != Staged:
		return true
	default:
		return f.CanStage && f.stagingUnmounted()
	}
}

func (f Facts) publishNeeded(wanted []Consumer) []Consumer {
	var out []Consumer
	for _, c := range wanted {
		if f.unpublished(c) {
			out = append(out, c)
		}
	}
	return out
}

// unpublished says whether a volume has to be published to a Pod, or published again.
func (f Facts) unpublished(c Consumer) bool {
	t := f.Record.Target(c.Path)
	return t == nil || t.Phase != Published || f.renewable(c.Path) || f.Unmounted(c.Path)
}

func (f Facts) bindNeeded(wanted []Consumer) []Consumer {
	var out []Consumer
	for _, c := range wanted {
		if c.HostPath == "" || f.ended(c) {
			continue
		}
		t := f.Record.Target(c.Path)
		if t == nil || t.HostPhase != Bound || !f.Mounted[c.HostPath] || f.renewable(c.Path) || f.deadOnHost(*t) {
			out = append(out, c)
		}
	}
	return out
}
