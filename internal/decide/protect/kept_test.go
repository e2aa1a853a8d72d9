package protect

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// TestKept: whoever holds an object that is being deleted is named, first of all one
// whose reason is known.
func TestKept(t *testing.T) {
	owners := Owners{
		"a": func() volume.Because { return volume.Because{Message: "a waits", Next: volume.Driver("d")} },
		"b": func() volume.Because { return volume.Because{Message: "b does not say for whom it waits"} },
	}
	for _, c := range []struct {
		finalizers []string
		message    string
		next       volume.Actor
	}{
		{nil, "nothing holds it", volume.APIServer()},
		{[]string{"x"}, "finalizer x belongs to another program", volume.OwnerOf("x")},
		{[]string{"x", "y"}, "finalizers x, y belong to other programs", volume.OwnerOf("x")},
		{[]string{"x", "a", "b"}, "a waits (a)", volume.Driver("d")},
		{[]string{"b", "a"}, "b does not say for whom it waits (b)", volume.OwnerOf("b")},
	} {
		got := Kept("claim c", &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Finalizers: c.finalizers}}, owners)
		want := volume.Because{
			Reason: volume.ReasonTerminating, Message: "claim c is being deleted; " + c.message, Next: c.next,
		}
		if got.Because != want || got.Stuck {
			t.Errorf("%v: %+v, want %+v", c.finalizers, got, want)
		}
	}
}
