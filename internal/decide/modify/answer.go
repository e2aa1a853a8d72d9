package modify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// Verdict is what an answer to ControllerModifyVolume means for a claim.
type Verdict struct {
	// Volume and Claim are written in this order: a repair of the claim takes the class from the volume. Nil leaves the
	// object as it is.
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
	// Because becomes an event of the claim: a warning immediately, any other after all writes.
	Because volume.Because
	Warn    bool
	// Refused says that no call for the class is in progress.
	Refused bool
	// Repeat means that the call is repeated after a back-off.
	Repeat bool
}

// After decides what follows from a call for the class that the claim's status names.
func After(f Facts, a volume.Answer, now metav1.Time) Verdict {
	c, target := f.Claim, f.Claim.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName
	if a.Outcome == volume.Done {
		return done(f, target)
	}
	v := Verdict{
		Because: failed(c, target, f.Volume.Spec.CSI.Driver, a), Warn: true,
		Refused: a.Outcome == volume.Failed && a.Code != "ResourceExhausted", Repeat: true,
	}
	words := fmt.Sprintf("Modifying volume to %q failed. Waiting for retry.", target)
	if !v.Refused {
		words = fmt.Sprintf("Modifying volume to %q is still in progress.", target)
		if a.Code != "" {
			v.Because.Message += "; it may still be in progress"
		}
	}
	out := c.DeepCopy()
	if a.Code == "InvalidArgument" {
		v.Repeat = false
		out.Status.ModifyVolumeStatus.Status = corev1.PersistentVolumeClaimModifyVolumeInfeasible
	}
	setConditions(out, now,
		condition(corev1.PersistentVolumeClaimVolumeModifyingVolume, "", words),
		condition(corev1.PersistentVolumeClaimVolumeModifyVolumeError, a.Code, strings.TrimPrefix(a.Text, a.Code+": ")))
	if !same(c, out) {
		v.Claim = out
	}
	return v
}

func done(f Facts, class string) Verdict {
	v := Verdict{Claim: finished(f.Claim, class), Because: volume.Because{
		Reason:  volume.ReasonModified,
		Message: "the volume of claim " + f.Claim.Name + " has the attributes of class " + class,
	}}
	if ptr.Deref(f.Volume.Spec.VolumeAttributesClassName, "") != class {
		v.Volume = f.Volume.DeepCopy()
		v.Volume.Spec.VolumeAttributesClassName = &class
	}
	return v
}

// Waiting returns the claim while its class does not exist.
func Waiting(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	out := c.DeepCopy()
	out.Status.ModifyVolumeStatus = cmp.Or(out.Status.ModifyVolumeStatus, &corev1.ModifyVolumeStatus{})
	out.Status.ModifyVolumeStatus.Status = corev1.PersistentVolumeClaimModifyVolumePending
	return out
}

// Begun returns the claim before its volume gets the attributes of a class.
func Begun(c *corev1.PersistentVolumeClaim, class string, now metav1.Time) *corev1.PersistentVolumeClaim {
	out := c.DeepCopy()
	out.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{
		TargetVolumeAttributesClassName: class, Status: corev1.PersistentVolumeClaimModifyVolumeInProgress,
	}
	setConditions(out, now, condition(corev1.PersistentVolumeClaimVolumeModifyingVolume, "",
		fmt.Sprintf("Modifying volume to %q is in progress.", class)))
	return out
}

// Refused returns a claim whose class belongs to another driver, with because as the message. Upstream calls the
// driver, which refuses; the claim shows the same here.
func Refused(f Facts, because string, now metav1.Time) *corev1.PersistentVolumeClaim {
	f.Claim = Begun(f.Claim, f.Target(), now)
	return After(f, volume.Answer{Outcome: volume.Failed, Code: "InvalidArgument", Text: because}, now).Claim
}

// Cancelled returns the claim without the condition of a change that is no longer wanted.
func Cancelled(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	out := c.DeepCopy()
	out.Status.Conditions = slices.DeleteFunc(out.Status.Conditions, isModifying)
	return out
}

func finished(c *corev1.PersistentVolumeClaim, class string) *corev1.PersistentVolumeClaim {
	out := Cancelled(c)
	out.Status.ModifyVolumeStatus, out.Status.CurrentVolumeAttributesClassName = nil, &class
	out.Status.Conditions = slices.DeleteFunc(out.Status.Conditions, func(k corev1.PersistentVolumeClaimCondition) bool {
		return k.Type == corev1.PersistentVolumeClaimVolumeModifyVolumeError
	})
	return out
}

func condition(
	t corev1.PersistentVolumeClaimConditionType, reason, message string,
) corev1.PersistentVolumeClaimCondition {
	return corev1.PersistentVolumeClaimCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message}
}

// setConditions sets conditions of a claim and leaves the others as they are. The time of a transition stays while
// status and reason do, as upstream does.
func setConditions(
	c *corev1.PersistentVolumeClaim, now metav1.Time, all ...corev1.PersistentVolumeClaimCondition,
) {
	for _, k := range all {
		k.LastProbeTime, k.LastTransitionTime = now, now
		i := slices.IndexFunc(c.Status.Conditions, func(old corev1.PersistentVolumeClaimCondition) bool {
			return old.Type == k.Type
		})
		if i < 0 {
			c.Status.Conditions = append(c.Status.Conditions, k)
			continue
		}
		if old := c.Status.Conditions[i]; old.Status == k.Status && old.Reason == k.Reason {
			k.LastTransitionTime = old.LastTransitionTime
		}
		c.Status.Conditions[i] = k
	}
}

// same says whether two states of a claim differ at most in their times.
func same(a, b *corev1.PersistentVolumeClaim) bool {
	return *a.Status.ModifyVolumeStatus == *b.Status.ModifyVolumeStatus &&
		slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, func(x, y corev1.PersistentVolumeClaimCondition) bool {
			return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason && x.Message == y.Message
		})
}
