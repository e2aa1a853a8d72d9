package attachdetach_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller/attachdetach"
)

// TestWhateverComesLast: a volume is attached as soon as everything that the attachment needs exists, in whatever order
// it appears.
func TestWhateverComesLast(t *testing.T) {
	needless := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}
	all := func() []runtime.Object { return append(bound("a"), node("n1"), pod("p", "n1", "a")) }
	type objects []runtime.Object
	for name, c := range map[string]struct {
		before func(o objects) []runtime.Object
		last   func(*world)
	}{
		"the volume": {func(o objects) []runtime.Object { return o[1:] }, func(w *world) { w.Users.Put(bound("a")[0]) }},
		"the claim": {
			func(o objects) []runtime.Object { return slices.Delete(o, 1, 2) }, func(w *world) { w.Users.Put(bound("a")[1]) },
		},
		"the node": {
			func(o objects) []runtime.Object { return slices.Delete(o, 2, 3) }, func(w *world) { w.Users.Put(node("n1")) },
		},
		"the Pod": {func(o objects) []runtime.Object { return o[:3] }, func(w *world) { w.Users.Put(pod("p", "n1", "a")) }},
		"the Pod's node": {func(o objects) []runtime.Object { return append(o[:3], pod("p", "", "a")) }, func(w *world) {
			change(w, w.pods(), "p", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
		}},
		"the claim's phase": {func(o objects) []runtime.Object {
			o[1].(*corev1.PersistentVolumeClaim).Status.Phase = corev1.ClaimPending
			return o
		}, func(w *world) {
			change(w, w.claims(), "a", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound })
		}},
		"the volume's claim": {func(o objects) []runtime.Object {
			o[0].(*corev1.PersistentVolume).Spec.ClaimRef = nil
			return o
		}, func(w *world) {
			change(w, w.Volumes(), "a", func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = volumeOf("a").Spec.ClaimRef })
		}},
		"that the driver needs it": {func(o objects) []runtime.Object { return append(o, needless) }, func(w *world) {
			change(w, w.Users.StorageV1().CSIDrivers(), driver,
				func(d *storagev1.CSIDriver) { d.Spec.AttachRequired = ptr.To(true) })
		}},
		"that nobody says it does not": {func(o objects) []runtime.Object { return append(o, needless) }, func(w *world) {
			gone(w, w.Users.StorageV1().CSIDrivers(), driver)
		}},
		"that a Pod of its name is gone": {func(o objects) []runtime.Object {
			o[3].(*corev1.Pod).Status.Phase = corev1.PodFailed
			return o
		}, func(w *world) { gone(w, w.pods(), "p"); w.Users.Put(pod("p", "n1", "a")) }},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, attachdetach.Options{}, func(w *world) {
				w.writes()
				c.last(w)
				w.pass(soon)
				w.are(attachment("a", "n1"))
				w.writes("create volumeattachments a>n1")
			}, c.before(all())...)
		})
	}
}

// TestWhateverEndsIt: a volume is detached as soon as no Pod uses it any more, whatever ends the use.
func TestWhateverEndsIt(t *testing.T) {
	for name, c := range map[string]struct {
		ends func(*world)
		stay bool
	}{
		"the Pod is gone":  {func(w *world) { gone(w, w.pods(), "p") }, false},
		"it has succeeded": {func(w *world) { change(w, w.pods(), "p", phase(corev1.PodSucceeded)) }, false},
		"it has failed":    {func(w *world) { change(w, w.pods(), "p", phase(corev1.PodFailed)) }, false},
		"it is being deleted": {func(w *world) {
			change(w, w.pods(), "p", func(p *corev1.Pod) { p.Finalizers = []string{"a/b"} })
			gone(w, w.pods(), "p")
		}, true},
		"another Pod has come": {func(w *world) { w.Users.Put(pod("q", "n1", "a")); gone(w, w.pods(), "p") }, true},
		"the claim is lost": {func(w *world) {
			change(w, w.claims(), "a", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost })
		}, false},
		"the claim is gone":  {func(w *world) { gone(w, w.claims(), "a") }, false},
		"the volume is gone": {func(w *world) { gone(w, w.Volumes(), "a") }, false},
		"the driver changes its mind": {func(w *world) {
			w.Users.Put(&storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
			})
		}, true},
		"the node looks otherwise": {func(w *world) {
			change(w, w.Nodes(), "n1", func(n *corev1.Node) { n.Labels = map[string]string{"a": "b"} })
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, attachdetach.Options{}, func(w *world) {
				w.attacher()
				c.ends(w)
				w.pass(soon)
				if c.stay {
					w.are(attachment("a", "n1", attached))
					w.writes("create volumeattachments a>n1", tells("n1", "a"))
					return
				}
				w.attacher()
				w.are()
				w.writes("create volumeattachments a>n1", tells("n1", "a"), tells("n1"), "delete volumeattachments a>n1 uid")
			}, append(bound("a"), node("n1"), pod("p", "n1", "a"))...)
		})
	}
}

func phase(p corev1.PodPhase) func(*corev1.Pod) { return func(o *corev1.Pod) { o.Status.Phase = p } }
