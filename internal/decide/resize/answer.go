package resize

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// Answer is the result of a ControllerExpandVolume or NodeExpandVolume call.
type Answer struct {
	volume.Answer
	// Bytes is the size of the volume as reported by the driver; 0 means that it did not say. NodeExpands means that the
	// node has to take part.
	Bytes       int64
	NodeExpands bool
}

// shortOf says that a call has succeeded and the volume still has less than the size that was requested; "" otherwise.
// A claim would say a size that its volume does not have.
func (a Answer) shortOf(size int64) string {
	if a.Outcome != volume.Done || a.Bytes == 0 || a.Bytes >= size {
		return ""
	}
	return fmt.Sprintf("it reports that the volume now has %d bytes, %d were requested", a.Bytes, size)
}

// Verdict is what an answer means for a claim.
type Verdict struct {
	// Volume and Claim are written in this order, because the node trusts the volume's size; nil leaves the object as it
	// is.
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
	// Because becomes an event of the claim: a warning immediately, any other after all writes.
	Because volume.Because
	Warn    bool
	// Repeat means that the call is repeated after a back-off.
	Repeat bool
}

// After decides what follows from a call that expands a claim's volume to size. It distinguishes a size
// that the driver will never accept from a call that may succeed later.
func After(f Facts, size resource.Quantity, a Answer, now metav1.Time) Verdict {
	c := f.Claim
	if a.Outcome != volume.Done {
		v := Verdict{Because: Failed(c, f.Volume.Spec.CSI.Driver, a.Answer), Warn: true}
		switch a.Code {
		case "InvalidArgument", "OutOfRange", "NotFound":
			v.Claim = Infeasible(c, size, a.Text, now)
		default:
			v.Claim, v.Repeat = Refused(c, a.Text, now), true
		}
		return v
	}
	if text := a.shortOf(size.Value()); text != "" {
		return Verdict{
			Because: Failed(c, f.Volume.Spec.CSI.Driver, volume.Answer{Text: text}), Warn: true, Repeat: true,
			Claim: Refused(c, text, now),
		}
	}
	grown := Expanded(c)
	if a.Bytes > size.Value() {
		requested := size.String()
		size = *resource.NewQuantity(a.Bytes, resource.BinarySI)
		grown.Message += fmt.Sprintf(": %s, more than the %s that were requested", size.String(), requested)
	}
	v := Verdict{Claim: Finished(c, size), Because: grown}
	if a.NodeExpands {
		v.Claim, v.Because = NodePending(c, size, now), Pending(Facts{Claim: c})
	}
	if f.Volume.Spec.Capacity.Storage().Cmp(size) != 0 {
		v.Volume = enlarged(f.Volume, size, a.NodeExpands)
	}
	return v
}
