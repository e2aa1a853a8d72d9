package attacher

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// looks is an attacher that only records which keys it would reconcile.
type looks struct {
	t       *testing.T
	client  *kubetest.API
	drivers *csi.Set
	keys    kubetest.Notes
}

// newLooks runs in a bubble; the drivers are registered before the attacher starts.
func newLooks(t *testing.T, drivers []string, objects ...runtime.Object) *looks {
	l := &looks{t: t, client: kubetest.NewAPI(t, objects...), drivers: csi.NewSet()}
	for _, name := range drivers {
		l.drivers.Put(&csi.Driver{Name: name})
	}
	p := l.client.Begin(func(env controller.Env) *controller.Controller { return New(env, Options{Drivers: l.drivers}) })
	l.keys.Instead(p.Controller)
	p.Work()
	return l
}

// at compares the keys reconciled since the last call.
func (l *looks) at(want ...string) {
	l.t.Helper()
	l.keys.Since(l.t, want...)
}

// TestStart: everything that may have changed while no attacher was running is reconciled.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		third := pv(t, "name=pv-3 dying")
		l := newLooks(t, []string{driverName, "e.example"}, va(t, ""), va(t, "another"), pv(t, ""), third)
		l.at("attachment/va", "attachment/va-2", "driver/d.example", "driver/e.example", "volume/pv-3")
	})
}

// TestAttachmentWakes: an attachment is reconciled when another client changes what it depends on, but not after the
// attacher's own writes, which would defeat the pause between two tries.
func TestAttachmentWakes(t *testing.T) {
	for name, c := range map[string]struct {
		before, after *storagev1.VolumeAttachment
		want          []string
	}{
		"it comes":                {nil, va(t, ""), []string{"attachment/va"}},
		"an error is written":     {va(t, "recorded"), va(t, "recorded error=no"), nil},
		"it is recorded":          {va(t, ""), va(t, "recorded"), nil},
		"it is attached":          {va(t, "recorded"), va(t, "recorded attached"), nil},
		"somebody says it is not": {va(t, "recorded attached"), va(t, "recorded"), []string{"attachment/va"}},
		"it is to be detached": {
			va(t, "recorded attached"), va(t, "recorded attached going"), []string{"attachment/va"},
		},
		"it is let go, others keep it":   {va(t, "recorded attached going"), va(t, "attached going"), nil},
		"somebody takes our finalizer":   {va(t, "recorded attached"), va(t, "attached"), []string{"attachment/va"}},
		"it goes after its detach":       {va(t, "attached going"), nil, []string{"attachment/va", "volume/pv"}},
		"it goes before it was attached": {va(t, ""), nil, []string{"attachment/va", "volume/pv"}},
		"it goes without a detach":       {va(t, "recorded attached"), nil, []string{"attachment/va", "volume/pv"}},
		"one without an object goes":     {va(t, "inline recorded"), nil, []string{"attachment/va"}},
		"another one takes its name": {
			va(t, "recorded"), va(t, "uid=new"), []string{"attachment/va", "volume/pv"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := []runtime.Object{
					pv(t, ""), story.Object[*storagev1.CSINode](t, "csinode"), story.Object[*corev1.Node](t, "node"),
				}
				if c.before != nil {
					objects = append(objects, c.before)
				}
				l := newLooks(t, nil, objects...)
				if c.before == nil {
					l.at()
				} else {
					l.at("attachment/" + c.before.Name)
				}
				switch {
				case c.after == nil:
					l.client.Drop(c.before)
				case c.before != nil && c.before.UID != c.after.UID:
					l.client.Drop(c.before)
					fallthrough
				default:
					l.client.Put(c.after)
				}
				l.at(c.want...)
			})
		})
	}
}

// TestOthersWake: a change of the PersistentVolume, the CSINode or the driver wakes the attachments that wait for it,
// and no others; a PersistentVolume that is being deleted is reconciled.
func TestOthersWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLooks(t, nil, va(t, ""), va(t, "another"), story.Object[*storagev1.CSINode](t, "csinode"))
		l.at("attachment/va", "attachment/va-2")

		l.client.Put(pv(t, ""))
		l.at("attachment/va")
		l.client.Put(pv(t, "{metadata: {labels: null}}"))
		l.at()
		l.client.Put(pv(t, "dying"))
		l.at("volume/pv")
		l.client.Drop(pv(t, ""))
		l.at()

		l.client.Put(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		l.at("attachment/va")
		l.client.Put(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
		l.at("attachment/va-2")
		l.client.Drop(story.Object[*storagev1.CSINode](t, "csinode"))
		l.at()

		l.drivers.Put(&csi.Driver{Name: driverName})
		l.at("attachment/va", "driver/d.example")
		l.drivers.Put(&csi.Driver{Name: "e.example"})
		l.at("attachment/va-2", "driver/e.example")
	})
}
