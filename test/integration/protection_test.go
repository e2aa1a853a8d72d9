package integration

import (
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
