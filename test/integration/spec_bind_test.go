package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// TestDefaultClass: a claim without a class gets the default class when it is created (S4-012), and of two
// default classes the newer one.
func TestDefaultClass(t *testing.T) {
	p := newPlane(t)
	usual := func(c *storagev1.StorageClass) { c.Annotations = map[string]string{volume.AnnDefaultClass: "true"} }
	nameless := func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }
	p.createClass("plain")
	p.createClass("usual", usual)
	// The admission reads a cache of its own.
	p.eventually(func() string {
		c, err := p.client.CoreV1().PersistentVolumeClaims("default").Create(p.ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "dry"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
				},
			},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		p.must(err)
		if got := ptr.Deref(c.Spec.StorageClassName, ""); got != "usual" {
			return fmt.Sprintf("a new claim gets class %q", got)
		}
		return ""
	})
	p.createClaim("c", "", nameless)
	if got := ptr.Deref(p.getClaim("c").Spec.StorageClassName, ""); got != "usual" {
		t.Errorf("the claim's class is %q", got)
	}
	p.waitForBound("c")
	if v := p.getVolume(p.getClaim("c").Spec.VolumeName); v.Spec.StorageClassName != "usual" {
		t.Errorf("the volume's class is %q", v.Spec.StorageClassName)
	}
	p.createClaim("classless", "")
	p.waitForEvent("PersistentVolumeClaim", "classless", volume.ReasonFailedBinding)
	p.waitForClaimPhase("classless", corev1.ClaimPending, "")
}
