package attacher

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/attach"
)

// TestReadOnlyAttach: a driver is asked to attach a volume for reading only if
// that is what the volume is for, and the driver has said that it can: the CSI
// specification forbids to ask another one.
func TestReadOnlyAttach(t *testing.T) {
	for _, c := range []struct{ readOnly, can, want bool }{
		{true, true, true},
		{true, false, false},
		{false, true, false},
		{false, false, false},
	} {
		d := &csi.Driver{Name: "d", Controller: csi.ControllerCapabilities{PublishUnpublish: true, PublishReadonly: c.can}}
		a := &attacher{Options: Options{Drivers: csi.NewSet()}}
		a.Drivers.Put(d)
		v := &corev1.PersistentVolume{
			Spec: corev1.PersistentVolumeSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}},
		}
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h", ReadOnly: c.readOnly}
		request, err := a.request(t.Context(), v, attach.Plan{Record: attach.Record{Handle: "h"}, NodeID: "id"})
		if err != nil {
			t.Fatal(err)
		}
		if request.GetReadonly() != c.want {
			t.Errorf("volume read only %v, driver can %v: asked %v", c.readOnly, c.can, request.GetReadonly())
		}
	}
}
