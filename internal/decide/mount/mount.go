package mount

import (
	"fmt"

	"volplane.dev/volplane/internal/volume"
)

// Facts are what is known of one volume on one node.
type Facts struct {
	Driver, Handle, Volume, Node string
	// Known says that the volume's object exists and can be staged and
	// published from.
	Known bool
	Block bool
	// DriverReady says that the driver is registered; CanStage that it stages.
	DriverReady, CanStage bool
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
	// Mounted are the paths at which something is mounted.
	Mounted map[string]bool
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
	Grow          Verb = "grow"
	Unbind        Verb = "unbind"
	Unpublish     Verb = "unpublish"
	Unstage       Verb = "unstage"
	UnmarkInUse   Verb = "unmark in use"
	Drop          Verb = "drop journal"
)

// Action is one step. Path names the target for publish, bind and their
// opposites. The journal is written before each step that has an effect.
type Action struct {
	Verb Verb
	Path string
}

// Plan is what to do, in order, and why. The steps behind a failed one are not
// done.
type Plan struct {
	Actions []Action
	Because volume.Because
}

// Volume decides about one volume on one node.
func Volume(f Facts) Plan {
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
	// driver says that one of the actions calls the driver.
	driver bool
}

func (p *planner) do(v Verb, path string) {
	p.actions = append(p.actions, Action{v, path})
	switch v {
	case Stage, Publish, Unpublish, Unstage, Grow:
		p.driver = true
	}
}

func (p *planner) plan(r volume.Reason, next, format string, args ...any) Plan {
	return Plan{Actions: p.actions, Because: volume.Because{Reason: r, Message: fmt.Sprintf(format, args...), Next: next}}
}

// missing returns the plan without the actions that need a driver that is not
// there.
func (p *planner) missing() Plan {
	p.actions = p.withoutDriver()
	return p.plan(volume.ReasonDriverMissing, p.f.Driver, "driver %s is not registered on node %s", p.f.Driver, p.f.Node)
}

// withoutDriver keeps the actions in front of the first call of the driver.
func (p *planner) withoutDriver() []Action {
	for i, a := range p.actions {
		switch a.Verb {
		case Stage, Publish, Unpublish, Unstage, Grow:
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

// release takes the volume from everybody who does not want it, and ends what
// was begun to be taken away.
func (p *planner) release(wanted []Consumer) {
	if p.f.Record == nil {
		return
	}
	for _, t := range p.f.Record.Targets {
		c, keep := find(wanted, t.Path)
		if t.HostPhase != "" && (!keep || c.HostPath != t.HostPath || t.HostPhase == Unbinding) {
			p.do(Unbind, t.Path)
		}
		if !keep || t.Phase == Unpublishing {
			p.do(Unpublish, t.Path)
		}
	}
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
	if p.f.InUse {
		p.do(UnmarkInUse, "")
	}
	if r != nil {
		p.do(Drop, "")
	}
	switch {
	case len(p.actions) == 0:
		return p.plan(volume.ReasonNothingToDo, "", "volume %s is not on node %s and nobody wants it there", p.f.Volume, p.f.Node)
	case p.driver && !p.f.DriverReady:
		return p.missing()
	default:
		return p.plan(volume.ReasonUnmounting, p.next, "no Pod on node %s wants volume %s", p.f.Node, p.f.Volume)
	}
}

// serve brings the volume to those who want it.
func (p *planner) serve(wanted []Consumer, holder string) Plan {
	leaving := len(p.actions) > 0
	if p.f.Record != nil && p.f.Record.Stage == Unstaging {
		p.do(Unstage, "")
		leaving = true
	}
	if leaving {
		return p.leave()
	}
	publish := p.f.publishNeeded(wanted)
	stage := p.f.stageNeeded(len(publish) > 0)
	if stage || len(publish) > 0 {
		if plan, wait := p.prepare(); wait {
			return plan
		}
	} else if !p.f.InUse {
		p.do(MarkInUse, "")
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
	return p.grow(holder)
}

// leave ends first what is being taken away; the volume is looked at again
// afterwards, with new facts.
func (p *planner) leave() Plan {
	if p.driver && !p.f.DriverReady {
		return p.missing()
	}
	return p.plan(volume.ReasonUnmounting, p.next, "volume %s is taken from Pods on node %s that no longer want it", p.f.Volume, p.f.Node)
}

// prepare makes sure of what must be true before the driver is called. The
// volume is marked in use before anybody looks whether it is attached:
// otherwise a detach that began in between would not see the mark.
func (p *planner) prepare() (Plan, bool) {
	if !p.f.Known {
		return p.plan(volume.ReasonVolumeMissing, "user", "there is no volume %s to mount", p.f.Volume), true
	}
	if !p.f.InUse {
		p.do(MarkInUse, "")
	}
	if !p.f.DriverReady {
		return p.missing(), true
	}
	if !p.f.AttachRequired {
		return Plan{}, false
	}
	// What was published once is still attached: volumesInUse keeps it so.
	if !p.f.Attached {
		return p.plan(volume.ReasonWaitForAttach, "attacher", "volume %s is not attached to node %s yet", p.f.Volume, p.f.Node), true
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
	case len(p.actions) > 0:
		return p.plan(volume.ReasonMounting, p.next, "volume %s is being mounted on node %s", f.Volume, f.Node)
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

func (f Facts) publishNeeded(wanted []Consumer) []Consumer {
	var out []Consumer
	for _, c := range wanted {
		t := f.Record.Target(c.Path)
		if t == nil || t.Phase != Published || f.Verify && !f.Block && !f.Mounted[c.Path] {
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
		if t == nil || t.HostPhase != Bound || !f.Mounted[c.HostPath] {
			out = append(out, c)
		}
	}
	return out
}
