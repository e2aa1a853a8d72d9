package resize

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// Step is what is done next about a claim's size.
type Step int

// Steps of a resize.
const (
	// Nothing: the sizes are as they should be, or somebody else's turn.
	Nothing Step = iota
	// Begin writes to the claim that its volume is about to grow; Expand
	// follows.
	Begin
	// Expand calls ControllerExpandVolume.
	Expand
	// Hand tells the node that the volume has grown: a stop between the two
	// writes of an expansion is made good.
	Hand
)

// Facts is everything that a decision about one claim looks at.
type Facts struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
	// Ours says that the volume's driver is reached by this process; Expands
	// that its controller service can grow volumes, NodeExpands that its node
	// service takes part.
	Ours, Expands, NodeExpands bool
}

// Plan is the next step and its reason.
type Plan struct {
	Step Step
	// Size is what the volume is to have.
	Size    resource.Quantity
	Because volume.Because
}

// Claim decides about one claim.
func Claim(f Facts) Plan {
	c, v := f.Claim, f.Volume
	say := func(r volume.Reason, next, message string) Plan {
		return Plan{Because: volume.Because{Reason: r, Message: message, Next: next}}
	}
	want, have := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
	state := c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	switch {
	case !isBound(c, v):
		return say(volume.ReasonNothingToDo, "", "claim "+c.Name+" is not bound to a CSI volume")
	case state == corev1.PersistentVolumeClaimNodeResizePending, state == corev1.PersistentVolumeClaimNodeResizeInProgress:
		return say(volume.ReasonNodeResizePending, "node", "claim "+c.Name+" waits for its node to grow the filesystem")
	case want.Cmp(have) <= 0:
		return say(volume.ReasonNothingToDo, "", "claim "+c.Name+" has the size that it requests")
	case !f.Ours:
		return say(volume.ReasonDriverMissing, v.Spec.CSI.Driver, "driver "+v.Spec.CSI.Driver+" has not registered")
	case !f.Expands && !f.NodeExpands:
		return say(volume.ReasonFailedResize, "user", "driver "+v.Spec.CSI.Driver+" cannot grow volumes")
	}
	size := v.Spec.Capacity[corev1.ResourceStorage]
	p := say(volume.ReasonResizing, v.Spec.CSI.Driver, fmt.Sprintf("volume %s grows from %s to %s", v.Name, size.String(), want.String()))
	p.Step, p.Size = Begin, want
	switch {
	case size.Cmp(want) >= 0:
		// The volume object was written, the claim was not.
		p.Step, p.Size = Hand, size
	case state == corev1.PersistentVolumeClaimControllerResizeInProgress && allocated(c).Cmp(want) == 0:
		p.Step = Expand
	}
	return p
}

// Grown explains a resize that is done.
func Grown(c *corev1.PersistentVolumeClaim) volume.Because {
	return volume.Because{Reason: volume.ReasonResized, Message: "claim " + c.Name + " has its new size"}
}

func isBound(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) bool {
	return c.Status.Phase == corev1.ClaimBound && v != nil && v.Spec.CSI != nil && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == c.UID
}

func allocated(c *corev1.PersistentVolumeClaim) *resource.Quantity {
	q := c.Status.AllocatedResources[corev1.ResourceStorage]
	return &q
}

// Begun returns the claim whose volume is about to grow to size.
func Begun(c *corev1.PersistentVolumeClaim, size resource.Quantity, now metav1.Time) *corev1.PersistentVolumeClaim {
	out := stamped(c, corev1.PersistentVolumeClaimControllerResizeInProgress, size)
	condition(out, corev1.PersistentVolumeClaimResizing, "", now)
	return out
}

// Infeasible returns the claim whose volume the driver will never grow to
// size.
func Infeasible(c *corev1.PersistentVolumeClaim, size resource.Quantity, message string, now metav1.Time) *corev1.PersistentVolumeClaim {
	out := stamped(c, corev1.PersistentVolumeClaimControllerResizeInfeasible, size)
	condition(out, corev1.PersistentVolumeClaimControllerResizeError, message, now)
	return out
}

// Handed returns the claim whose volume has grown to size and whose filesystem
// is the node's turn.
func Handed(c *corev1.PersistentVolumeClaim, size resource.Quantity, now metav1.Time) *corev1.PersistentVolumeClaim {
	out := stamped(c, corev1.PersistentVolumeClaimNodeResizePending, size)
	condition(out, corev1.PersistentVolumeClaimFileSystemResizePending, "Waiting for user to (re-)start a pod to finish file system resize of volume on node.", now)
	return out
}

// Finished returns the claim that has its new size.
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

func stamped(c *corev1.PersistentVolumeClaim, state corev1.ClaimResourceStatus, size resource.Quantity) *corev1.PersistentVolumeClaim {
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
func condition(c *corev1.PersistentVolumeClaim, t corev1.PersistentVolumeClaimConditionType, message string, now metav1.Time) {
	c.Status.Conditions = append(withoutResize(c.Status.Conditions), corev1.PersistentVolumeClaimCondition{
		Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now, Message: message,
	})
}

func withoutResize(all []corev1.PersistentVolumeClaimCondition) []corev1.PersistentVolumeClaimCondition {
	return slices.DeleteFunc(slices.Clone(all), func(c corev1.PersistentVolumeClaimCondition) bool {
		switch c.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			return true
		}
		return false
	})
}
