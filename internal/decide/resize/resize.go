package resize

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// Step is the next step of a claim's resize.
type Step int

// Steps of a resize.
const (
	// Nothing: the sizes are right, or another program acts next.
	Nothing Step = iota
	// Begin writes to the claim that its volume is about to grow; Expand follows.
	Begin
	// Expand calls ControllerExpandVolume.
	Expand
	// Hand records for the node that the volume has grown, which repairs a crash between the two writes of an expansion.
	Hand
	// Settle removes from the volume the record of its size before the resize, which is complete.
	Settle
)

// Facts is everything on which the decision about one claim depends.
type Facts struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
	// Reachable means that this process reaches the volume's driver; Expands that its controller service can grow volumes,
	// NodeExpands that its node service takes part.
	Reachable, Expands, NodeExpands bool
	// Refused says that the driver's last answer to the size in the claim's
	// allocatedResources was a final no: the volume does not have that size.
	Refused bool
	// Due means that an infeasible size may be requested again.
	Due bool
	// Node is a node on which a Pod uses the claim, if that was determined; Unused means that no Pod uses it.
	Node   string
	Unused bool
}

// Plan is the next step and its reason.
type Plan struct {
	Step Step
	// Size is the target size of the volume.
	Size resource.Quantity
	// Event means that the user has not been notified yet.
	Event   bool
	Because volume.Because
}

// Claim decides about one claim.
func Claim(f Facts) Plan {
	c, v := f.Claim, f.Volume
	if !cluster.BoundCSI(c, v) {
		return nothing(volume.ReasonNothingToDo, volume.Actor{}, "claim "+c.Name+" is not bound to a CSI volume")
	}
	have := c.Status.Capacity[corev1.ResourceStorage]
	if f.Reachable && isMarked(v) && have.Cmp(v.Spec.Capacity[corev1.ResourceStorage]) >= 0 {
		p := nothing(volume.ReasonResized, volume.Actor{}, "the resize of volume "+v.Name+" is over")
		p.Step = Settle
		return p
	}
	return bound(f, have)
}

// bound decides about a bound claim that has the size in its status.
func bound(f Facts, have resource.Quantity) Plan {
	c, v := f.Claim, f.Volume
	want := c.Spec.Resources.Requests[corev1.ResourceStorage]
	_, tooLarge := provision.Bytes(&want)
	switch {
	case c.DeletionTimestamp != nil:
		return nothing(volume.ReasonTerminating, volume.Actor{}, "claim "+c.Name+" is being deleted")
	case StateOf(c) == corev1.PersistentVolumeClaimNodeResizePending,
		StateOf(c) == corev1.PersistentVolumeClaimNodeResizeInProgress:
		return Plan{Because: Pending(f)}
	case want.Cmp(have) <= 0:
		return nothing(volume.ReasonNothingToDo, volume.Actor{}, "claim "+c.Name+" has the size that it requests")
	case !f.Reachable:
		return nothing(volume.ReasonDriverMissing, volume.Driver(v.Spec.CSI.Driver),
			"driver "+v.Spec.CSI.Driver+" has not registered")
	case !f.Expands && !f.NodeExpands:
		p := nothing(volume.ReasonFailedResize, volume.User(), "driver "+v.Spec.CSI.Driver+" cannot expand volumes")
		p.Event = true
		return p
	case tooLarge != nil:
		p := nothing(volume.ReasonFailedResize, volume.User(), "the claim's request of "+tooLarge.Error())
		p.Event = true
		return p
	case IsInfeasible(c) && !f.Due:
		return infeasible(c)
	}
	return grow(f, want)
}

func nothing(r volume.Reason, next volume.Actor, message string) Plan {
	return Plan{Because: volume.Say(r, next, message)}
}

func infeasible(c *corev1.PersistentVolumeClaim) Plan {
	reason := volume.ReasonFailedResize
	if StateOf(c) == corev1.PersistentVolumeClaimNodeResizeInfeasible {
		reason = volume.ReasonFailedNodeResize
	}
	return nothing(reason, volume.User(), "claim "+c.Name+" cannot have the size that it requests: "+problem(c))
}

// IsInfeasible says whether the claim's present request was permanently refused. If only the node cannot expand the
// filesystem, a new request changes nothing, because the volume is larger already.
func IsInfeasible(c *corev1.PersistentVolumeClaim) bool {
	want := c.Spec.Resources.Requests[corev1.ResourceStorage]
	switch StateOf(c) {
	case corev1.PersistentVolumeClaimControllerResizeInfeasible:
		return allocated(c).Cmp(want) == 0
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		return true
	}
	return false
}

// problem returns the error in the claim's conditions of a resize.
func problem(c *corev1.PersistentVolumeClaim) string { return cmp.Or(Failure(c), string(StateOf(c))) }

// Failure returns why the volume or its filesystem was not expanded; "" if no failure is known.
func Failure(c *corev1.PersistentVolumeClaim) string {
	for _, k := range c.Status.Conditions {
		if k.Type == corev1.PersistentVolumeClaimControllerResizeError ||
			k.Type == corev1.PersistentVolumeClaimNodeResizeError {
			return k.Message
		}
	}
	return ""
}

func grow(f Facts, want resource.Quantity) Plan {
	c, v := f.Claim, f.Volume
	size := v.Spec.Capacity[corev1.ResourceStorage]
	began := StateOf(c) == corev1.PersistentVolumeClaimControllerResizeInProgress
	if began && !f.Refused && allocated(c).Cmp(size) > 0 {
		// The volume may have this size already: a request that has changed since, and may be smaller, comes after it.
		want = *allocated(c)
	}
	p := nothing(volume.ReasonResizing, volume.Driver(v.Spec.CSI.Driver),
		fmt.Sprintf("volume %s is being expanded from %s to %s", v.Name, size.String(), want.String()))
	p.Step, p.Size = Begin, want
	switch {
	case size.Cmp(want) >= 0:
		// The volume object was written, but not the claim; or a node gets another chance.
		p.Step, p.Size = Hand, size
		p.Because.Message = fmt.Sprintf("volume %s was expanded to %s", v.Name, size.String())
	case began && allocated(c).Cmp(want) == 0:
		p.Step = Expand
	}
	return p
}

// Pending is the reason of a resize that waits for the node.
func Pending(f Facts) volume.Because {
	b := volume.Say(volume.ReasonNodeResizePending, volume.AnyNodeAgent(), "claim "+f.Claim.Name+" has an expanded "+
		"volume; ")
	switch {
	case f.Unused:
		b.Message, b.Next = b.Message+"its filesystem is expanded when a Pod mounts it", volume.User()
	case f.Node != "":
		b.Message, b.Next = b.Message+"node "+f.Node+" expands the filesystem", volume.NodeAgent(f.Node)
	default:
		b.Message += "the node expands the filesystem"
	}
	return b
}

// Failed is the reason of a driver's call that failed.
func Failed(c *corev1.PersistentVolumeClaim, driver string, a volume.Answer) volume.Because {
	return a.Because(volume.ReasonFailedResize, volume.Driver(driver),
		"driver "+driver+" did not expand the volume of claim "+c.Name+": "+a.Text)
}

// Expanded is the reason of a resize that is done.
func Expanded(c *corev1.PersistentVolumeClaim) volume.Because {
	return volume.Because{Reason: volume.ReasonResized, Message: "claim " + c.Name + " has its new size"}
}

// isMarked says whether a volume records its size before a resize that the node has to complete: if the claim is
// deleted first, the next one begins with that size (B-030).
func isMarked(v *corev1.PersistentVolume) bool {
	_, ok := v.Annotations[volume.AnnPreResizeCapacity]
	return ok
}

// Settled returns the volume after its resize.
func Settled(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	out := v.DeepCopy()
	delete(out.Annotations, volume.AnnPreResizeCapacity)
	return out
}

// enlarged returns the volume with its new size, and with the old one if the node has to complete the resize.
func enlarged(v *corev1.PersistentVolume, size resource.Quantity, nodeExpands bool) *corev1.PersistentVolume {
	out := v.DeepCopy()
	if nodeExpands && !isMarked(v) {
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, volume.AnnPreResizeCapacity, v.Spec.Capacity.Storage().String())
	}
	out.Spec.Capacity[corev1.ResourceStorage] = size
	return out
}

// StateOf returns the state of a claim's resize; "" without one.
func StateOf(c *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

func allocated(c *corev1.PersistentVolumeClaim) *resource.Quantity {
	q := c.Status.AllocatedResources[corev1.ResourceStorage]
	return &q
}

// Started returns the claim before its volume is expanded to size.
func Started(c *corev1.PersistentVolumeClaim, size resource.Quantity, now metav1.Time) *corev1.PersistentVolumeClaim {
	out := withState(c, corev1.PersistentVolumeClaimControllerResizeInProgress, size)
	condition(out, corev1.PersistentVolumeClaimResizing, "", now)
	return out
}

// Infeasible returns the claim after the driver has permanently refused size.
func Infeasible(
	c *corev1.PersistentVolumeClaim, size resource.Quantity, message string, now metav1.Time,
) *corev1.PersistentVolumeClaim {
	out := withState(c, corev1.PersistentVolumeClaimControllerResizeInfeasible, size)
	condition(out, corev1.PersistentVolumeClaimControllerResizeError, message, now)
	return out
}

// Refused returns the claim after a failed call; nil if it has that error already.
func Refused(c *corev1.PersistentVolumeClaim, message string, now metav1.Time) *corev1.PersistentVolumeClaim {
	for _, k := range c.Status.Conditions {
		if k.Type == corev1.PersistentVolumeClaimControllerResizeError && k.Message == message {
			return nil
		}
	}
	out := c.DeepCopy()
	condition(out, corev1.PersistentVolumeClaimControllerResizeError, message, now)
	return out
}

// NodePending returns the claim after its volume was expanded to size, when the node has to expand the filesystem.
func NodePending(
	c *corev1.PersistentVolumeClaim, size resource.Quantity, now metav1.Time,
) *corev1.PersistentVolumeClaim {
	out := withState(c, corev1.PersistentVolumeClaimNodeResizePending, size)
	condition(out, corev1.PersistentVolumeClaimFileSystemResizePending,
		"Waiting for user to (re-)start a pod to finish file system resize of volume on node.", now)
	return out
}

// Finished returns the claim with its new size.
func Finished(c *corev1.PersistentVolumeClaim, size resource.Quantity) *corev1.PersistentVolumeClaim {
	out := c.DeepCopy()
	if out.Status.Capacity == nil {
		out.Status.Capacity = corev1.ResourceList{}
	}
	out.Status.Capacity[corev1.ResourceStorage] = size
	delete(out.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	delete(out.Status.AllocatedResources, corev1.ResourceStorage)
	out.Status.Conditions = withoutResize(out.Status.Conditions)
	return out
}

func withState(
	c *corev1.PersistentVolumeClaim, state corev1.ClaimResourceStatus, size resource.Quantity,
) *corev1.PersistentVolumeClaim {
	out := c.DeepCopy()
	if out.Status.AllocatedResources == nil {
		out.Status.AllocatedResources = corev1.ResourceList{}
	}
	if out.Status.AllocatedResourceStatuses == nil {
		out.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	out.Status.AllocatedResources[corev1.ResourceStorage] = size
	out.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = state
	return out
}

// condition replaces all conditions of a resize by one.
func condition(
	c *corev1.PersistentVolumeClaim, t corev1.PersistentVolumeClaimConditionType, message string, now metav1.Time,
) {
	c.Status.Conditions = append(withoutResize(c.Status.Conditions), corev1.PersistentVolumeClaimCondition{
		Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now, Message: message,
	})
}

func withoutResize(all []corev1.PersistentVolumeClaimCondition) []corev1.PersistentVolumeClaimCondition {
	return slices.DeleteFunc(slices.Clone(all),
		func(c corev1.PersistentVolumeClaimCondition) bool { return isResize(c.Type) })
}

func isResize(t corev1.PersistentVolumeClaimConditionType) bool {
	switch t {
	case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
		corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
		return true
	}
	return false
}

// ConditionOf returns the condition of a claim's size.
func ConditionOf(f Facts) volume.Condition {
	p, cause := Claim(f), Failure(f.Claim)
	if p.Step == Hand && isNodePending(f.Claim) {
		p.Because = Pending(f)
	}
	switch {
	case cause == "" || p.Step == Nothing && p.Because.Reason != volume.ReasonNodeResizePending:
		return volume.Condition{Because: p.Because, Stuck: p.Event || p.Step == Nothing && IsInfeasible(f.Claim)}
	case p.Because.Reason == volume.ReasonNodeResizePending:
		return volume.Condition{Because: FailedOnNode(f.Claim, p.Because.Next, volume.AnswerIn(cause)), Stuck: true}
	}
	return volume.Condition{Because: Failed(f.Claim, f.Volume.Spec.CSI.Driver, volume.AnswerIn(cause)), Stuck: true}
}

// isNodePending says whether a condition, without a resource status, says that the node has to expand the filesystem.
func isNodePending(c *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(k corev1.PersistentVolumeClaimCondition) bool {
		return k.Type == corev1.PersistentVolumeClaimFileSystemResizePending && k.Status == corev1.ConditionTrue
	})
}

// FailedOnNode is the reason of a filesystem that was not expanded; repeats is the actor that tries again.
func FailedOnNode(c *corev1.PersistentVolumeClaim, repeats volume.Actor, a volume.Answer) volume.Because {
	return a.Because(volume.ReasonFailedNodeResize, repeats, "the filesystem of "+
		"claim "+c.Name+" was not expanded: "+a.Text)
}

// NodeVerdict is the meaning of an answer to NodeExpandVolume. A failed call is repeated after a back-off, unless that
// is forbidden.
type NodeVerdict struct {
	// State is what the claim's status says from now on; nil leaves it as it is, and empty means that the growth is
	// complete.
	State *corev1.ClaimResourceStatus
	// Refused means that the driver must not be called for this size before the volume is mounted again: CSI forbids it.
	Refused bool
	// Short says that the driver reported success, and by how much less than was requested the volume has grown: the call
	// has failed. It is "" otherwise.
	Short string
}

// AfterNode judges the answer to a NodeExpandVolume call that requested size bytes.
func AfterNode(answer Answer, size int64) NodeVerdict {
	state := corev1.PersistentVolumeClaimNodeResizeInfeasible
	short := answer.shortOf(size)
	switch {
	case short != "":
		return NodeVerdict{Short: short}
	case answer.Outcome == volume.Done:
		state = ""
	case answer.Code == "FailedPrecondition":
		return NodeVerdict{Refused: true}
	case answer.Code != "InvalidArgument" && answer.Code != "OutOfRange" && answer.Code != "NotFound":
		return NodeVerdict{}
	}
	// Otherwise the driver will never do it: the user has to request another size.
	return NodeVerdict{State: &state}
}

// NodeStatus returns the node's changes of a claim's status: the resource status, and the capacity when the expansion
// is done.
func NodeStatus(
	c *corev1.PersistentVolumeClaim, state corev1.ClaimResourceStatus, size resource.Quantity,
) map[string]any {
	if state != "" {
		return map[string]any{"allocatedResourceStatuses": map[string]any{"storage": state}}
	}
	return map[string]any{
		"capacity": map[string]any{"storage": size.String()}, "conditions": withoutResize(c.Status.Conditions),
		"allocatedResourceStatuses": map[string]any{"storage": nil},
	}
}
