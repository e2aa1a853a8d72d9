package why

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/modify"
	"volplane.dev/volplane/internal/decide/placement"
	"volplane.dev/volplane/internal/decide/protect"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// claim explains the claim by itself.
func (f facts) claim() chain.Link {
	subject, c := "pvc/"+f.ClaimName, f.Claim
	if l, ok := f.moved(subject, "", f.Namespace+"/"+f.ClaimName); ok &&
		(c == nil || c.DeletionTimestamp != nil || c.Status.Phase != corev1.ClaimBound) {
		return l
	}
	switch {
	case c == nil:
		return chain.New(subject, chain.Problem, volume.ReasonClaimMissing,
			fmt.Sprintf("claim %s does not exist in namespace %s", f.ClaimName, f.Namespace), volume.User())
	case c.DeletionTimestamp != nil:
		return chain.FromCondition(subject, f.deletedClaim())
	}
	modes := make([]string, 0, len(c.Spec.AccessModes))
	for _, m := range c.Spec.AccessModes {
		modes = append(modes, string(m))
	}
	state, reason := "waits for a volume of ", volume.ReasonBinding
	if c.Status.Phase == corev1.ClaimBound {
		state, reason = "asks for ", volume.ReasonBound
	}
	return chain.New(subject, chain.OK, reason,
		state+c.Spec.Resources.Requests.Storage().String()+", "+strings.Join(modes, ", "), volume.Actor{})
}

// deletedClaim explains what keeps a claim that is being deleted.
func (f facts) deletedClaim() volume.Condition {
	return protect.Kept("claim "+f.ClaimName, f.Claim, protect.Owners{
		volume.FinalizerClaimProtection: func() volume.Because {
			_, b := protect.Claim(f.Claim, f.View.Pods.By(cluster.PodsByClaim, cluster.Key(f.Claim)))
			return b
		},
		volume.FinalizerCloning:        func() volume.Because { return provision.Copied(f.Claim, f.Begun) },
		volume.FinalizerSnapshotSource: f.snapshotted,
	})
}

// snapshotted explains what a claim waits for of which a snapshot is taken. The snapshots may be hidden from the user.
func (f facts) snapshotted() volume.Because {
	p := snapshot.Claim(f.Claim, f.View.Snapshots.By(cluster.SnapshotsByClaim, cluster.Key(f.Claim)))
	if p.Step != snapshot.Nothing {
		p.Because.Message = "it stays until no snapshot of it is being taken"
	}
	return p.Because
}

// binding explains the class and the volume of a claim, by the decisions that bind it and provision its volume.
func (f facts) binding() []chain.Link {
	told := f.bound()
	class, pv := f.class(), "pv"
	if name := f.Claim.Spec.VolumeName; name != "" {
		pv = "pv/" + name
	}
	switch {
	case told.Reason == volume.ReasonDefaultClassAssigned:
		return []chain.Link{chain.FromCondition("storageclass/"+bind.DefaultClass(f.Classes).Name, told)}
	case told.Reason == volume.ReasonDriverMissing:
		return []chain.Link{class, chain.FromCondition("csidriver/"+f.Class.Provisioner, told)}
	case f.Class == nil && told.Stuck && f.Claim.Spec.VolumeName == "":
		return []chain.Link{chain.FromCondition(class.Subject, told)}
	}
	return []chain.Link{class, chain.FromCondition(pv, told)}
}

// class names the driver of the claim's class.
func (f facts) class() chain.Link {
	name, _ := bind.ClassOf(f.Claim)
	if name == "" {
		return chain.New("storageclass", chain.OK, volume.ReasonNothingToDo,
			"the claim has no class: only manually created volumes fit", volume.Actor{})
	}
	message := "a bound claim does not need its class"
	switch {
	case f.Class == nil:
	case f.Class.Provisioner == volume.NoProvisioner:
		message = "volumes of this class are created manually"
	default:
		message = "driver " + f.Class.Provisioner
	}
	return chain.New("storageclass/"+name, chain.OK, volume.ReasonNothingToDo, message, volume.Actor{})
}

// bound explains what the binder decides about the claim, and for a volume that has to be
// provisioned, what the provisioner does.
func (f facts) bound() volume.Condition {
	told := bind.Claim(bind.FactsWithFree(f.View, f.Claim, f.freeVolumes)).Condition()
	switch {
	case told.Reason == volume.ReasonExternalProvisioning:
		return f.provisioned(told)
	case told.Reason != volume.ReasonBound:
	case f.Volume.DeletionTimestamp != nil:
		return f.deletedVolume()
	default:
		told.Message = f.Volume.Spec.Capacity.Storage().String() + " of " + f.maker()
	}
	return told
}

// maker names the driver of the volume.
func (f facts) maker() string {
	if s, ok := drivers.Of(f.Volume); ok {
		return s.String()
	}
	return "no driver"
}

// provisioned explains a volume that a driver is to create. What only the provisioner
// knows is in its intents, if they may be read, and in its events.
func (f facts) provisioned(told volume.Condition) volume.Condition {
	p := provision.ClaimFactsOf(f.View, provision.ClaimFacts{
		Claim: f.Claim, Intent: f.intent(), Driver: f.Class.Provisioner,
	})
	p.Partial, p.Reachable = true, f.provides(p.Driver)
	plan := provision.Claim(p)
	if plan.Because.Reason == volume.ReasonDriverMissing {
		return volume.Condition{Because: drivers.OrMeant(f.View, p.Driver, plan.Because), Stuck: true}
	}
	unplaced := placement.IsUnplaced(f.Claim, f.Class, cluster.Find(f.View.Drivers, p.Driver))
	if c, ok := f.uncalled(p.Driver); ok && !unplaced {
		return c
	}
	if plan.Fault {
		return volume.Condition{Because: plan.Because, Stuck: true}
	}
	if failed, ok := f.Warnings.Condition(f.Claim, volume.ReasonProvisioningFailed, volume.Driver(p.Driver)); ok {
		return failed
	}
	if unplaced {
		told.Message = "the claim waits until one of the nodes with driver " + p.Driver + " is selected"
		told.Next = volume.Controller("placement")
		return told
	}
	if plan.Event {
		return f.populated(plan.Because)
	}
	busy := f.Warnings.About(f.Claim.UID, volume.ReasonDriverBusy)
	switch {
	case plan.Step == provision.Create:
		return volume.Condition{Because: plan.Because}
	case busy != nil:
		told.Reason, told.Message = volume.ReasonDriverBusy, state.Message(busy)
	case f.MakingHidden:
		told.Message += "; with the right to list the ConfigMaps of all namespaces, why says whether it was asked"
	}
	return told
}

// populated explains a claim that a populator fills, whose state is only in its events.
func (f facts) populated(b volume.Because) volume.Condition {
	warning := f.Warnings.About(f.Claim.UID, "")
	if warning != nil {
		b.Message += "; the newest warning about the claim is: " + state.Message(warning) + " (" + warning.Reason + ")"
	}
	return volume.Condition{Because: b, Stuck: warning != nil}
}

// intent returns what the provisioner has begun for the claim; nil when nothing is known.
func (f facts) intent() *provision.Intent {
	return cluster.First(f.Begun, func(in *provision.Intent) bool { return in.Claim.UID == f.Claim.UID })
}

// freeVolumes returns the volumes that any claim may take.
func (w Walk) freeVolumes() *bind.Free {
	if w.free == nil {
		w.free = bind.FreeOf(w.View)
	}
	return w.free
}

// modify explains a claim that requests the attributes of another class.
func (f facts) modify() []chain.Link {
	c := modify.ConditionOf(f.Claim, f.Volume)
	if c.Next.IsZero() {
		return nil
	}
	subject := "attributes/" + f.ClaimName
	if l, ok := f.Failed(subject, f.Claim, volume.ReasonFailedModify, c.Next); ok && modify.Failure(f.Claim) == "" {
		return []chain.Link{l}
	}
	if b, away := f.Uncalled(f.source(), f.servedOn()); away && !c.Stuck {
		return []chain.Link{chain.Broken(subject, b)}
	}
	return []chain.Link{f.link(subject, c)}
}

// resize explains a claim that requests more than its capacity.
func (f facts) resize() []chain.Link {
	facts := resize.Facts{Claim: f.Claim, Volume: f.Volume, Reachable: true, Expands: true, NodeExpands: true}
	for _, p := range f.users() {
		facts.Node = cmp.Or(facts.Node, p.Spec.NodeName)
	}
	facts.Unused = facts.Node == ""
	c := resize.ConditionOf(facts)
	if c.Next.IsZero() {
		return nil
	}
	subject := "resize/" + f.ClaimName
	if l, ok := f.failedResize(subject, c); ok {
		return []chain.Link{l}
	}
	return []chain.Link{f.link(subject, c)}
}

// failedResize reports what no condition shows: that a node could not expand a filesystem
// is only in an event, and that a driver cannot be called is recorded nowhere.
func (f facts) failedResize(subject string, c volume.Condition) (chain.Link, bool) {
	switch {
	case c.Stuck && resize.Failure(f.Claim) == "":
		return f.Failed(subject, f.Claim, c.Reason, c.Next)
	case c.Reason == volume.ReasonNodeResizePending:
		return f.Failed(subject, f.Claim, volume.ReasonFailedNodeResize, c.Next)
	case c.Reason != volume.ReasonResizing:
		return chain.Link{}, false
	}
	if l, ok := f.Failed(subject, f.Claim, volume.ReasonFailedResize, c.Next); ok {
		return l, true
	}
	b, away := f.Uncalled(f.source(), f.servedOn())
	return chain.Broken(subject, b), away
}
