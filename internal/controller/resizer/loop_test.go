package resizer

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/resize"
)

// TestWakes: whatever comes last, the claim's wish, the binding from either side,
// or the driver, the volume grows then.
func TestWakes(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)
		late   bool
	}{
		"it is all there": {func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {}, false},
		"the wish": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.Resources.Requests = storage("1Gi")
		}, false},
		"the claim's phase": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Status.Phase = corev1.ClaimPending
		}, false},
		"the claim's volume": {
			func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.Spec.VolumeName = "" }, false,
		},
		"the volume's claim": {
			func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }, false,
		},
		"the size that it has": {
			func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.Status.Capacity = storage("2Gi") }, false,
		},
		"the driver": {func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			claim, pv := bound(c.before)
			w := newWorldWith(t, csitest.Full(), grown(2*gib, false), claim, pv, secret())
			if !c.late {
				w.register()
			}
			w.run()
			wantClaim, wantVolume := bound()
			if name != "it is all there" && !c.late {
				w.client.Put(wantClaim)
				if pv.Spec.ClaimRef == nil {
					w.client.Put(wantVolume)
				}
			}
			if c.late {
				w.register()
			}
			w.told("VolumeResizeSuccessful", "has its new size")
			w.called(request(2 * gib))
			wantVolume.Spec.Capacity = storage("2Gi")
			w.are(resize.Finished(wantClaim, resource.MustParse("2Gi")), wantVolume)
			w.told("Resizing", "volume pv grows from 1Gi to 2Gi")
		})
	}
}

// TestStoppedBetweenTwoWrites: the volume has its size and the claim does not say
// so: the driver is not asked again.
func TestStoppedBetweenTwoWrites(t *testing.T) {
	claim, pv := bound(func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
		v.Spec.Capacity = storage("2Gi")
	})
	w := newWorld(t, grown(2*gib, true), claim, pv, secret())
	if _, err := w.reconcile(); err != nil {
		t.Fatal(err)
	}
	w.called()
	w.are(resize.Handed(claim, resource.MustParse("2Gi"), metav1.Now()), pv)
	w.told("FileSystemResizeRequired", "the node grows the filesystem")
}

// TestCannotGrow: a driver that cannot is not asked, and the claim's owner is
// told; one of which only the node's part can has the volume grown there.
func TestCannotGrow(t *testing.T) {
	config := csitest.Full()
	config.Controller.Expand, config.Node.Expand = false, false
	claim, pv := bound()
	w := newWorldWith(t, config, grown(2*gib, true), claim, pv, secret())
	w.register()
	if _, err := w.reconcile(); err != nil {
		t.Fatal(err)
	}
	w.called()
	w.are(claim, pv)
	w.told("VolumeResizeFailed", "driver d.example cannot grow volumes")

	config.Node.Expand = true
	w = newWorldWith(t, config, grown(2*gib, true), claim, pv, secret())
	w.register()
	if _, err := w.reconcile(); err != nil {
		t.Fatal(err)
	}
	w.called()
	size := resource.MustParse("2Gi")
	larger := pv.DeepCopy()
	larger.Spec.Capacity = storage("2Gi")
	w.are(resize.Handed(resize.Begun(claim, size, metav1.Now()), size, metav1.Now()), larger)
}
