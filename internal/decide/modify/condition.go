package modify

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// ConditionOf returns the condition of a claim's attributes, as far as the claim tells it: which classes there are, and
// what the driver can do, is not looked at.
func ConditionOf(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) volume.Condition {
	f := Facts{Claim: c, Volume: v, Ours: true, Modifies: true}
	s := c.Status.ModifyVolumeStatus
	if v != nil && v.Spec.CSI != nil && (s == nil || s.Status != corev1.PersistentVolumeClaimModifyVolumePending) {
		f.Class = &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: f.Target()}, DriverName: v.Spec.CSI.Driver,
		}
	}
	p := Claim(f)
	cause := Failure(c)
	if p.Step == Modify && cause != "" {
		return volume.Condition{Because: failed(c, f.Target(), v.Spec.CSI.Driver, volume.AnswerIn(cause)), Stuck: true}
	}
	return volume.Condition{Because: p.Because, Stuck: p.Because.Reason == volume.ReasonFailedModify}
}

// failed is the reason of a call that has failed.
func failed(c *corev1.PersistentVolumeClaim, class, driver string, a volume.Answer) volume.Because {
	return a.Because(volume.ReasonFailedModify, volume.Driver(driver),
		"driver "+driver+" did not give the volume of claim "+c.Name+" the attributes of class "+class+": "+a.Text)
}
