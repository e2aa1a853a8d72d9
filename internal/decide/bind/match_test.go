package bind

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		if got := refersTo(&c.ref, claim); got != c.want {
			t.Errorf("%+v means claim ns/c: %v", c.ref, got)
		}
	}
}
