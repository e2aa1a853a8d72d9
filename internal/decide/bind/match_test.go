package bind

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// TestRefersTo: a reference means one claim only, not another namespace's of the
// same name, and no later one of its name.
func TestRefersTo(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"}}
	for _, c := range []struct {
		ref  corev1.ObjectReference
		want bool
	}{
		{corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "u"}, true},
		{corev1.ObjectReference{Namespace: "ns", Name: "c"}, true},
		{corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "other"}, false},
		{corev1.ObjectReference{Namespace: "other", Name: "c"}, false},
		{corev1.ObjectReference{Namespace: "other", Name: "c", UID: "u"}, false},
		{corev1.ObjectReference{Namespace: "ns", Name: "other"}, false},
		{corev1.ObjectReference{Namespace: "ns", Name: "other", UID: "u"}, false},
	} {
		if got := RefersTo(&c.ref, claim); got != c.want {
			t.Errorf("%+v means claim ns/c: %v", c.ref, got)
		}
	}
}

// TestTogether: a claim and a volume belong together only if each names the
// other, in one namespace.
func TestTogether(t *testing.T) {
	named := claim(wantsPV)
	for _, c := range []struct {
		argues string
		claim  *corev1.PersistentVolumeClaim
		volume *corev1.PersistentVolume
		want   bool
	}{
		{"both do", named, pv("pv", "5Gi", refers("ns", "data", "u1")), true},
		{"whatever the uid", named, pv("pv", "5Gi", refers("ns", "data", "u0")), true},
		{"there is no claim", nil, pv("pv", "5Gi", refers("ns", "data", "u1")), false},
		{"the volume names none", named, pv("pv", "5Gi"), false},
		{"it names one of another namespace", named, pv("pv", "5Gi", refers("other", "data", "u1")), false},
		{"it names another one", named, pv("pv", "5Gi", refers("ns", "more", "u1")), false},
		{"the claim names none", claim(), pv("pv", "5Gi", refers("ns", "data", "u1")), false},
		{"it names another volume", named, pv("pv2", "5Gi", refers("ns", "data", "u1")), false},
	} {
		if got := Together(c.claim, c.volume); got != c.want {
			t.Errorf("%s: %v", c.argues, got)
		}
	}
}

// TestIsFree: a volume that was lost with its node is there for no claim.
func TestIsFree(t *testing.T) {
	if IsFree(pv("pv", "5Gi", lost)) || !IsFree(pv("pv", "5Gi")) {
		t.Error("a lost volume is free, or another one is not")
	}
}

// TestMatchKeepsItsPromises: whatever the volumes are, what is matched is large
// enough, of the right class, and free or kept for the claim.
func TestMatchKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []*corev1.PersistentVolume
		for i := range rapid.IntRange(0, 8).Draw(t, "n") {
			v := pv(fmt.Sprint("v", i), fmt.Sprintf("%dGi", rapid.IntRange(1, 9).Draw(t, "size")))
			for name, f := range map[string]func(*corev1.PersistentVolume){
				"slow": slow, "wide": wide, "block": block, "taken": refers("x", "y", "z"), "kept": refers("ns", "data", ""),
			} {
				if rapid.IntRange(0, 3).Draw(t, name) == 0 {
					f(v)
				}
			}
			all = append(all, v)
		}
		c := claim()
		v := Match(c, all, rapid.Bool().Draw(t, "late"))
		if v == nil {
			return
		}
		if v.Spec.Capacity.Storage().Cmp(*c.Spec.Resources.Requests.Storage()) < 0 || v.Spec.VolumeMode != nil ||
			v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Name != "data" ||
			v.Spec.ClaimRef == nil && v.Spec.StorageClassName != "fast" {
			t.Fatalf("matched %s", v.Name)
		}
	})
}
