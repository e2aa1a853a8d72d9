package attach_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
)

// TestLostAttachment: an attachment that was lost with node and volume is released without its driver, and only when it
// is being deleted; one of a volume that another node serves is detached by its driver.
func TestLostAttachment(t *testing.T) {
	t.Parallel()
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{volume.AnnLostWith: "n1"}, Finalizers: []string{volume.AttacherFinalizer("d")},
	}}
	a.Spec.Attacher, a.Spec.NodeName = "d", "n1"
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		volume.AnnProvisionedOn: "n1",
	}}}
	f := attach.Facts{Attachment: a, Volume: v}
	f.Lost = attach.IsLost(f)
	if p := attach.Attachment(f); p.Step != attach.Nothing {
		t.Errorf("while it is wanted: %v", p.Step)
	}
	a.DeletionTimestamp = &metav1.Time{}
	if p := attach.Attachment(f); p.Step != attach.Release {
		t.Errorf("when it goes: %v", p.Step)
	}
	v.Annotations[volume.AnnProvisionedOn] = "n2"
	if attach.IsLost(f) {
		t.Error("the volume of another node is lost")
	}
}
