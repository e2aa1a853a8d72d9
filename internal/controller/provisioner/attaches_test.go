package provisioner

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// TestAttachersFinalizer: the object of a volume has the attacher's finalizer from its creation on, if the attacher
// runs in the same process and the driver attaches volumes.
func TestAttachersFinalizer(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct{ runs, attaches, want bool }{
		"it runs":                            {true, true, true},
		"it runs elsewhere":                  {false, true, false},
		"the driver does not need attaching": {true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(s *setup) {
				s.Attaches, s.config.Controller.PublishUnpublish = one.runs, one.attaches
			}, class(), claim("c"), key())
			b.works(kindClaim, "u-c")
			v, err := b.api.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-u-c", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if slices.Contains(v.Finalizers, volume.AttacherFinalizer(driverName)) != one.want {
				t.Errorf("finalizers %v", v.Finalizers)
			}
		})
	}
}
