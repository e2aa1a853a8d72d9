package mount

import (
	"fmt"
	"slices"

	"volplane.dev/volplane/internal/volume"
)

// Facts are what is known of one volume on one node.
type Facts struct {
	Driver, Handle, Volume, Node string
	// Known says that the volume's object exists and can be staged and
	// published from.
	Known bool
	Block bool
	// Refused says why the volume may not be mounted although it exists; empty
	// when it may.
	Refused string
	// Ephemeral says that a Pod itself names the volume. It is published and
	// nothing else: nobody but its driver knows of it.
	Ephemeral bool
	// DriverReady says that the driver is registered; CanStage that it stages.
	DriverReady, CanStage bool
	// Absent says why it is not, if more is known than that.
	Absent volume.Because
	// AttachRequired says that the volume must be attached first; Attached
	// that the node's volumesAttached has it.
	AttachRequired, Attached bool
	// InUse says that the node's volumesInUse has the volume.
	InUse bool
	// SinglePod says that only one Pod may have the volume (ReadWriteOncePod).
	SinglePod bool
	// Wanted are the Pods that want the volume, in a stable order.
	Wanted []Consumer
	// Record is the journal's; nil when there is none.
	Record *Record
	// Verify says that the mount table is to be believed more than Record.
	Verify bool
	// Mounted are the paths at which something is mounted, or at which a device
	// is that was published. Dead are those of them whose filesystem will never
	// answer again, because its server is gone.
	Mounted, Dead map[string]bool
	// Grow is the size in bytes that the node has to grow the volume to; 0
	// when nothing is asked.
	Grow int64
}

// Consumer is a Pod that wants the volume at a path.
type Consumer struct {
	UID, Namespace, Name, Path string
	ReadOnly                   bool
	// HostPath is a directory of the host that shall show the volume too.
	HostPath string
	// Allowed is what files may do there.
	Allowed Allowed
	// Due says that the driver wants to be called again for what it published.
	Due bool
}

// Verb names what one action does.
type Verb string

// The verbs of actions, in the order in which they can follow each other.
const (
	MarkInUse     Verb = "mark in use"
	CheckAttached Verb = "check attached"
	Stage         Verb = "stage"
	Publish       Verb = "publish"
	Bind          Verb = "bind"
	Republish     Verb = "publish again"
	Grow          Verb = "grow"
	Unbind        Verb = "unbind"
	Unpublish     Verb = "unpublish"
	Unstage       Verb = "unstage"
	UnmarkInUse   Verb = "unmark in use"
	Drop          Verb = "drop journal"
)

// Action is one step. Path names the target for those that are about one Pod. The journal is written before each step
// that has an effect.
type Action struct {
	Verb Verb
	Path string
}

// Plan is what to do, in order, and why. The steps that a failed one Blocks are
// not done.
type Plan struct {
	Actions []Action
	Because volume.Because
}

// Blocks says whether a step must not be done after another one of its plan has
// failed. What goes wrong at one Pod is no reason to keep others waiting.
func Blocks(failed, next Action) bool {
	switch failed.Verb {
	case Republish:
		return false
	case Bind:
		return next.Path == failed.Path
	case Publish:
		return next.Path == failed.Path || next.Verb == Grow
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
	p := &planner{f: f, next: "node " + f.Node}
	admitted, held := f.admit()
	p.release(admitted)
	if len(admitted) == 0 {
		return p.end()
	}
	return p.serve(admitted, held)
}

type planner struct {
	f       Facts
	next    string
	actions []Action
	// driver says that one of the actions calls the driver, bringing that one
	// brings the volume nearer to a Pod.
	driver, bringing bool
}

func (p *planner) do(v Verb, path string) {
	p.actions = append(p.actions, Action{v, path})
	p.driver = p.driver || calls(v)
	switch v {
	case MarkInUse, Stage, Publish, Bind, Grow:
		p.bringing = true
	}
}

// calls says whether an action calls the driver.
func calls(v Verb) bool {
	switch v {
	case Stage, Publish, Republish, Unpublish, Unstage, Grow:
		return true
	}
	return false
}

func (p *planner) plan(r volume.Reason, next, format string, args ...any) Plan {
	return Plan{Actions: p.actions, Because: volume.Because{Reason: r, Message: fmt.Sprintf(format, args...), Next: next}}
}

// missing returns the plan without the actions that need a driver that is not
// there.
func (p *planner) missing() Plan {
	p.actions = p.withoutDriver()
	if p.f.Absent.Reason != "" {
		return Plan{Actions: p.actions, Because: p.f.Absent}
	}
	return p.plan(volume.ReasonDriverMissing, p.f.Driver, "driver %s is not registered on node %s", p.f.Driver, p.f.Node)
}

// withoutDriver keeps the actions in front of the first call of the driver.
func (p *planner) withoutDriver() []Action {
	for i, a := range p.actions {
		if calls(a.Verb) {
			return p.actions[:i]
		}
	}
	return p.actions
}

// admit returns who may have the volume, and the Pod that keeps others out. A
// Pod that has the volume already is never pushed out by another one.
func (f Facts) admit() (admitted []Consumer, holder string) {
	if !f.SinglePod || len(f.Wanted) < 2 {
		return f.Wanted, ""
	}
	for _, c := range f.Wanted {
		if f.Record.Target(c.Path) != nil {
			admitted = append(admitted, c)
		}
	}
	if len(admitted) == 0 {
		admitted = f.Wanted[:1]
	}
	if len(admitted) < len(f.Wanted) {
		holder = admitted[0].Namespace + "/" + admitted[0].Name
	}
	return admitted, holder
}

// release takes the volume from everybody who does not want it, ends what was
// begun to be taken away, and takes away what is dead and can be made anew.
func (p *planner) release(wanted []Consumer) {
	if p.f.Record == nil {
		return
	}
	staging := p.f.stagingRenewable()
	for _, t := range p.f.Record.Targets {
		c, keep := find(wanted, t.Path)
		keep = keep && t.Phase != Unpublishing && !staging && !p.f.renewable(t.Path)
		if t.HostPhase != "" && (!keep || c.HostPath != t.HostPath || t.HostPhase == Unbinding) {
			p.do(Unbind, t.Path)
		}
		if !keep {
			p.do(Unpublish, t.Path)
		}
	}
}

// renewable says whether what is mounted at a path is dead, and everything is
// there to make it anew. Otherwise it is left alone: a consumer may still have
// use for what it has open.
func (f Facts) renewable(path string) bool {
	return f.Verify && f.Dead[path] && f.Known && f.Refused == "" && f.DriverReady
}

func find(wanted []Consumer, path string) (Consumer, bool) {
	for _, c := range wanted {
		if c.Path == path {
			return c, true
		}
	}
	return Consumer{}, false
}

// end takes the volume off the node. NodeUnstage comes after every
// NodeUnpublish, and volumesInUse is given up last, because the detach waits
// for it.
func (p *planner) end() Plan {
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
		return p.plan(volume.ReasonNothingToDo, "", "volume %s is not on node %s and nobody wants it there",
			p.f.Volume, p.f.Node)
	case p.driver && !p.f.DriverReady:
		return p.missing()
	default:
		return p.plan(volume.ReasonUnmounting, p.next, "no Pod on node %s wants volume %s", p.f.Node, p.f.Volume)
	}
}

// stagingRenewable wants everything dead that the volume, which has a record, is
// staged for: what still works at a Pod is worth more than the next Pod.
func (f Facts) stagingRenewable() bool {
	r := f.Record
	return r.Stage == Staged && f.renewable(r.StagingPath) &&
		!slices.ContainsFunc(r.Targets, func(t Target) bool { return f.Mounted[t.Path] && !f.Dead[t.Path] })
}

// serve brings the volume to those who want it. What is taken from others comes
// first; it keeps nobody waiting unless only one Pod may have the volume.
func (p *planner) serve(wanted []Consumer, holder string) Plan {
	r := p.f.Record
	switch {
	case r != nil && (r.Stage == Unstaging || p.f.stagingRenewable()):
		p.do(Unstage, "")
		return p.leave()
	case p.f.SinglePod && len(p.actions) > 0, p.driver && !p.f.DriverReady:
		return p.leave()
	}
	if plan, wait := p.bring(wanted); wait {
		return plan
	}
	return p.again(p.grow(holder), wanted)
}

// bring adds what brings the volume to those who want it, or says what it has
// to wait for.
func (p *planner) bring(wanted []Consumer) (Plan, bool) {
	publish := p.f.publishNeeded(wanted)
	stage := p.f.stageNeeded(len(publish) > 0)
	if stage || len(publish) > 0 {
		if plan, wait := p.prepare(); wait {
			return plan, true
		}
	} else {
		p.mark()
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

func (p *planner) mark() {
	if !p.f.InUse && !p.f.Ephemeral {
		p.do(MarkInUse, "")
	}
}

// leave ends first what is being taken away; the volume is looked at again
// afterwards, with new facts.
func (p *planner) leave() Plan {
	if p.driver && !p.f.DriverReady {
		return p.missing()
	}
	if p.f.stagingRenewable() {
		return p.broken()
	}
	return p.leaving()
}

func (p *planner) leaving() Plan {
	return p.plan(volume.ReasonUnmounting, p.next, "volume %s is taken from Pods on node %s that no longer want it",
		p.f.Volume, p.f.Node)
}

func (p *planner) broken() Plan {
	return p.plan(volume.ReasonMountBroken, p.next,
		"the mount of volume %s on node %s is dead, its server is gone; it is made anew", p.f.Volume, p.f.Node)
}

// again calls the driver once more for what is published, if it wants so.
func (p *planner) again(plan Plan, wanted []Consumer) Plan {
	if !p.f.DriverReady || !p.f.Known || p.f.Refused != "" {
		return plan
	}
	for _, c := range wanted {
		if c.Due && !slices.Contains(plan.Actions, Action{Publish, c.Path}) {
			plan.Actions = append(plan.Actions, Action{Republish, c.Path})
		}
	}
	return plan
}

// prepare makes sure of what must be true before the driver is called. The
// volume is marked in use before anybody looks whether it is attached:
// otherwise a detach that began in between would not see the mark.
func (p *planner) prepare() (Plan, bool) {
	if !p.f.Known {
		return p.plan(volume.ReasonVolumeMissing, "user", "there is no volume %s to mount", p.f.Volume), true
	}
	if !p.f.DriverReady && p.f.Absent.Reason != "" {
		return p.missing(), true // what it would refuse is not known before it is there
	}
	if p.f.Refused != "" {
		return p.plan(volume.ReasonFailedMount, "user", "%s", p.f.Refused), true
	}
	p.mark()
	if !p.f.DriverReady {
		return p.missing(), true
	}
	if !p.f.AttachRequired {
		return Plan{}, false
	}
	// What was published once is still attached: volumesInUse keeps it so.
	if !p.f.Attached {
		return p.plan(volume.ReasonWaitForAttach, "attacher", "volume %s is not attached to "+
			"node %s yet", p.f.Volume, p.f.Node), true
	}
	p.do(CheckAttached, "")
	return Plan{}, false
}

func (p *planner) grow(holder string) Plan {
	f := p.f
	if f.growNeeded() {
		p.do(Grow, "")
	}
	switch {
	case slices.ContainsFunc(p.actions, func(a Action) bool { return f.renewable(a.Path) }):
		return p.broken()
	case slices.ContainsFunc(p.actions, func(a Action) bool { return f.Unmounted(a.Path) }):
		return p.plan(volume.ReasonMountBroken, p.next,
			"the mount of volume %s on node %s is gone, somebody has unmounted it; it is made anew", f.Volume, f.Node)
	case p.bringing:
		return p.plan(volume.ReasonMounting, p.next, "volume %s is being mounted on node %s", f.Volume, f.Node)
	case len(p.actions) > 0:
		return p.leaving()
	case holder != "":
		return p.plan(volume.ReasonInUse, "pod "+holder, "volume %s is for one Pod only and Pod %s has it", f.Volume, holder)
	default:
		return p.plan(volume.ReasonMounted, "", "volume %s is mounted on node %s", f.Volume, f.Node)
	}
}

// growNeeded leaves alone what the driver has refused: CSI forbids to ask again
// before something has changed, and that is the next mount.
func (f Facts) growNeeded() bool {
	if f.Grow <= 0 || !f.DriverReady || !f.Known {
		return false
	}
	return f.Record == nil || f.Record.Size < f.Grow && f.Record.GrowRefused != f.Grow
}

func (f Facts) stageNeeded(publish bool) bool {
	r := f.Record
	switch {
	case r == nil || r.Stage == "":
		return f.CanStage && publish
	case r.Stage != Staged:
		return true
	default:
		return f.Verify && r.StagingMounted && !f.Mounted[r.StagingPath]
	}
}

// Unmounted says whether the journal has the volume published at a path where the mount
// table has nothing.
func (f Facts) Unmounted(path string) bool {
	t := f.Record.Target(path)
	return f.Verify && t != nil && t.Phase == Published && !f.Mounted[path]
}

func (f Facts) publishNeeded(wanted []Consumer) []Consumer {
	var out []Consumer
	for _, c := range wanted {
		t := f.Record.Target(c.Path)
		if t == nil || t.Phase != Published || f.renewable(c.Path) || f.Unmounted(c.Path) {
			out = append(out, c)
		}
	}
	return out
}

func (f Facts) bindNeeded(wanted []Consumer) []Consumer {
	var out []Consumer
	for _, c := range wanted {
		if c.HostPath == "" {
			continue
		}
		t := f.Record.Target(c.Path)
		if t == nil || t.HostPhase != Bound || !f.Mounted[c.HostPath] || f.renewable(c.Path) {
			out = append(out, c)
		}
	}
	return out
}
