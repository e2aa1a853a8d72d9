package resize

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"volplane.dev/volplane/internal/volume"
)

// NodeVerdict is what an answer to NodeExpandVolume means. A call that failed is repeated after a
// back-off unless it must not be.
type NodeVerdict struct {
	// State is what the claim says from now on of its size; nil when it stays as it is, and empty when the growth is done.
	State *corev1.ClaimResourceStatus
	// Refused says that the driver is not asked for this size before the volume is mounted anew: CSI forbids it.
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
	// Otherwise the driver will never do it: the user has to ask for another size.
	return NodeVerdict{State: &state}
}

// NodeStatus returns what the node changes in a claim's status: the resource status, and the capacity
// when the expansion is done.
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
