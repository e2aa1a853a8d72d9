package provision_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// TestLostVolume: a volume that was lost with its node is let go without its driver, when nobody has it any more.
func TestLostVolume(t *testing.T) {
	t.Parallel()
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", Annotations: map[string]string{
		volume.AnnProvisionedOn: "n1", volume.AnnLostWith: "n1",
	}, Finalizers: []string{volume.FinalizerProvisioner}}}
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "gone"}
	v.Status.Phase = corev1.VolumeReleased
	f := provision.VolumeFacts{Volume: v, Lost: provision.IsLost(v)}
	if step, why := provision.Volume(f); step != provision.Forget || why.Reason != volume.ReasonNodeGone {
		t.Errorf("%v: %s", step, why.Message)
	}
	f.Attachments = []string{"a"}
	if step, _ := provision.Volume(f); step != provision.Keep {
		t.Errorf("while it is attached: %v", step)
	}
	f.Attachments, v.Status.Phase = nil, corev1.VolumeBound
	if step, _ := provision.Volume(f); step != provision.Keep {
		t.Errorf("while it is bound: %v", step)
	}
	v.Annotations[volume.AnnProvisionedOn] = "n2"
	if provision.IsLost(v) {
		t.Error("the mark of another node than the one that serves it counts")
	}
}
