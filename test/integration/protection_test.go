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

// TestClaimInUse: a claim that is deleted stays while a Pod with a node is
// there, running or ended; a Pod without a node does not keep it.
func TestClaimInUse(t *testing.T) {
	p := newPlane(t)
	p.makeClass("fast")
	p.makeClaim("c", "fast")
	p.bound("c")
	p.pod("web", "n1", "c")
	p.pod("job", "n2", "c")
	p.pod("waiting", "", "c", "absent")
	p.unplaced("waiting", `persistentvolumeclaim "absent" not found`)
	p.removeClaim("c")
	p.removePod("web")
	_, err := p.client.CoreV1().Pods("default").Patch(p.ctx, "job", types.MergePatchType,
		[]byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
	p.must(err)
	// Another claim's whole life leaves time to do the wrong thing.
	p.makeClaim("other", "fast")
	p.bound("other")
	p.removeClaim("other")
	p.noClaim("other")
	if c := p.claim("c"); !slices.Contains(c.Finalizers, volume.FinalizerClaimProtection) ||
		c.Status.Phase != corev1.ClaimBound {
		t.Errorf("claim is %s with finalizers %v", c.Status.Phase, c.Finalizers)
	}
	p.volumePhase(p.claim("c").Spec.VolumeName, corev1.VolumeBound)
	p.removePod("job")
	p.noClaim("c")
	p.nothingLeft()
}

// TestVolumeInUse: a volume that is deleted stays while its claim is bound.
func TestVolumeInUse(t *testing.T) {
	p := newPlane(t)
	p.makeVolume("v", "2Gi", "")
	p.makeVolume("free", "1Gi", "")
	p.makeClaim("c", "")
	p.claimPhase("c", corev1.ClaimBound, "v")
	for _, name := range []string{"v", "free"} {
		p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, name, metav1.DeleteOptions{}))
	}
	p.noVolume("free")
	if v := p.getVolume("v"); v.Status.Phase != corev1.VolumeBound || v.DeletionTimestamp == nil {
		t.Errorf("volume is %s, deleted %v", v.Status.Phase, v.DeletionTimestamp)
	}
	p.claimPhase("c", corev1.ClaimBound, "v")
	p.removeClaim("c")
	p.noVolume("v")
}

func (p *plane) noVolume(name string) {
	p.t.Helper()
	p.eventually(func() string {
		v, err := p.client.CoreV1().PersistentVolumes().Get(p.ctx, name, metav1.GetOptions{})
		if gone(err) {
			return ""
		}
		return fmt.Sprintf("volume %s is there, %s, finalizers %v, %v", name, v.Status.Phase, v.Finalizers, err)
	})
}

// TestMissingProtection is added: other servers may not set it on creation, and
// users take it away.
func TestMissingProtection(t *testing.T) {
	p := newPlane(t)
	p.makeVolume("v", "2Gi", "")
	p.makeClaim("c", "")
	p.claimPhase("c", corev1.ClaimBound, "v")
	protected := func() {
		t.Helper()
		p.eventually(func() string {
			if c := p.claim("c"); !slices.Equal(c.Finalizers, []string{volume.FinalizerClaimProtection}) {
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
	p.pod("web", "n1", "c")
	p.removeClaim("c")
	p.removePod("web")
	p.noClaim("c")
	p.volumePhase("v", corev1.VolumeReleased)
}
