package integration

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// TestClaimInUse: a claim that is being deleted exists as long as a Pod on a node uses it, running or
// ended. A Pod without a node does not keep it.
func TestClaimInUse(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	p.createClaim("c", "fast")
	p.waitForBound("c")
	p.createPod("web", "n1", "c")
	p.createPod("job", "n2", "c")
	p.createPod("waiting", "", "c", "absent")
	p.waitForNoPlacement("waiting", `persistentvolumeclaim "absent" not found`)
	p.deleteClaim("c")
	p.deletePod("web")
	_, err := p.client.CoreV1().Pods("default").Patch(p.ctx, "job", types.MergePatchType,
		[]byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
	p.must(err)
	// Another claim's whole life leaves time to do the wrong thing.
	p.createClaim("other", "fast")
	p.waitForBound("other")
	p.deleteClaim("other")
	p.waitForNoClaim("other")
	if c := p.getClaim("c"); !slices.Contains(c.Finalizers, volume.FinalizerClaimProtection) ||
		c.Status.Phase != corev1.ClaimBound {
		t.Errorf("claim is %s with finalizers %v", c.Status.Phase, c.Finalizers)
	}
	p.waitForVolumePhase(p.getClaim("c").Spec.VolumeName, corev1.VolumeBound)
	p.deletePod("job")
	p.waitForNoClaim("c")
	p.nothingLeft()
}

// TestVolumeInUse: a volume object that is being deleted exists as long as its claim is bound.
func TestVolumeInUse(t *testing.T) {
	p := newPlane(t)
	p.createVolume("v", "2Gi", "")
	p.createVolume("free", "1Gi", "")
	p.createClaim("c", "")
	p.waitForClaimPhase("c", corev1.ClaimBound, "v")
	for _, name := range []string{"v", "free"} {
		p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, name, metav1.DeleteOptions{}))
	}
	p.waitForNoVolume("free")
	if v := p.getVolume("v"); v.Status.Phase != corev1.VolumeBound || v.DeletionTimestamp == nil {
		t.Errorf("volume is %s, deleted %v", v.Status.Phase, v.DeletionTimestamp)
	}
	p.waitForClaimPhase("c", corev1.ClaimBound, "v")
	p.deleteClaim("c")
	p.waitForNoVolume("v")
}

func (p *plane) waitForNoVolume(name string) {
	p.t.Helper()
	p.eventually(func() string {
		v, err := p.client.CoreV1().PersistentVolumes().Get(p.ctx, name, metav1.GetOptions{})
		if gone(err) {
			return ""
		}
		return fmt.Sprintf("volume %s is there, %s, finalizers %v, %v", name, v.Status.Phase, v.Finalizers, err)
	})
}

// TestMissingProtection: a missing finalizer is added, since other API servers may not set it on creation,
// and users may remove it.
func TestMissingProtection(t *testing.T) {
	p := newPlane(t)
	p.createVolume("v", "2Gi", "")
	p.createClaim("c", "")
	p.waitForClaimPhase("c", corev1.ClaimBound, "v")
	protected := func() {
		t.Helper()
		p.eventually(func() string {
			if c := p.getClaim("c"); !slices.Equal(c.Finalizers, []string{volume.FinalizerClaimProtection}) {
				return fmt.Sprintf("claim has finalizers %v", c.Finalizers)
			}
			if v := p.getVolume("v"); !slices.Contains(v.Finalizers, volume.FinalizerVolumeProtection) {
				return fmt.Sprintf("volume has finalizers %v", v.Finalizers)
			}
			return ""
		})
	}
	p.patchClaim("c", `{"metadata":{"finalizers":null}}`)
	p.patchVolume("v", `{"metadata":{"finalizers":null}}`)
	protected()
	p.stop()
	p.patchClaim("c", `{"metadata":{"finalizers":null}}`)
	p.patchVolume("v", `{"metadata":{"finalizers":null}}`)
	p.start()
	protected()
	// What is added keeps its object.
	p.createPod("web", "n1", "c")
	p.deleteClaim("c")
	p.deletePod("web")
	p.waitForNoClaim("c")
	p.waitForVolumePhase("v", corev1.VolumeReleased)
}
