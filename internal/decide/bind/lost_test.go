package bind

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

func lost(v *corev1.PersistentVolume) { v.Annotations[volume.AnnLostWith] = "n2" }

// TestLostWithNode: a volume that was lost with its node says so while it is bound, is released like any other, and is
// not bound to a new claim.
func TestLostWithNode(t *testing.T) {
	bound := func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }
	v := pv("pv", "5Gi", refers("ns", "data", "u1"), lost, bound)
	if p := Volume(VolumeFacts{Volume: v, Claim: claim(wantsPV)}); p.Event != Warning || len(p.Writes) != 0 ||
		p.Because.Reason != volume.ReasonLostWithNode || p.Because.Next != volume.User() {
		t.Errorf("bound: %+v", p)
	}
	if p := Volume(VolumeFacts{Volume: v}); p.Because.Reason != volume.ReasonReleased || len(p.Writes) != 1 {
		t.Errorf("its claim is gone: %+v", p)
	}
	free := []*corev1.PersistentVolume{pv("lost", "5Gi", lost), pv("large", "9Gi")}
	if best := Match(claim(), free, false); best != free[1] {
		t.Errorf("the claim gets %v", best)
	}
	if IsFree(free[0]) || !IsFree(free[1]) {
		t.Error("a lost volume is free, or another one is not")
	}
}
