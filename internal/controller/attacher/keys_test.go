package attacher

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// looks is an attacher that only notes which keys it is to look at.
type looks struct {
	t       *testing.T
	client  *fake.Clientset
	drivers *csi.Set
	keys    kubetest.Notes
}

// newLooks runs in a bubble; the drivers are there before the attacher.
func newLooks(t *testing.T, drivers []string, objects ...runtime.Object) *looks {
	l := &looks{t: t, client: kubetest.NewClient(t, objects...), drivers: csi.NewSet()}
	for _, name := range drivers {
		l.drivers.Put(&csi.Driver{Name: name})
	}
	ctx, cancel := context.WithCancel(t.Context())
	caches := kube.NewCaches(l.client)
	c := New(controller.Env{
		Client: l.client, Caches: caches, Events: kube.NewRecorder(ctx, l.client, "attacher"),
		Log: slog.New(slog.DiscardHandler),
	}, Options{Drivers: l.drivers})
	c.Reconcile = func(_ context.Context, key controller.Key) (controller.Result, error) {
		l.keys.Add(key.String())
		return controller.Result{}, nil
	}
	followed := kubetest.Follow(t, l.client)
	if err := caches.Start(ctx); err != nil {
		t.Fatal(err)
	}
	followed()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l
}

// at compares what was looked at since the last time.
func (l *looks) at(want ...string) {
	l.t.Helper()
	l.keys.Since(l.t, want...)
}

func (l *looks) ok(_ any, err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// another is an attachment of another driver's volume to another node.
func another(a *storagev1.VolumeAttachment) {
	name := "pv-2"
	a.Name, a.UID, a.Spec.Attacher, a.Spec.NodeName, a.Spec.Source.PersistentVolumeName = "va-2", "va-2-uid",
		"e.example", "n2", &name
}

// inline is an attachment that says itself what its volume is.
func inline(a *storagev1.VolumeAttachment) {
	a.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &pv().Spec}
}

// TestStart looks at all that may have changed while nobody was there.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		third := pv(dying, func(v *corev1.PersistentVolume) { v.Name = "pv-3" })
		l := newLooks(t, []string{driverName, "e.example"}, va(), va(another), pv(), third)
		l.at("attachment/va", "attachment/va-2", "driver/d.example", "driver/e.example", "volume/pv-3")
	})
}

// TestAttachmentWakes: an attachment is looked at when somebody else changes what
// it depends on, and not for what the attacher writes to it, which would defeat the
// pause between two tries.
func TestAttachmentWakes(t *testing.T) {
	for name, c := range map[string]struct {
		before, after *storagev1.VolumeAttachment
		want          []string
	}{
		"it comes": {nil, va(), []string{"attachment/va"}},
		"an error is written": {va(recorded), va(recorded, func(a *storagev1.VolumeAttachment) {
			a.Status.AttachError = &storagev1.VolumeError{Message: "no"}
		}), nil},
		"it is recorded":                 {va(), va(recorded), nil},
		"it is attached":                 {va(recorded), va(recorded, attached), nil},
		"somebody says it is not":        {va(recorded, attached), va(recorded), []string{"attachment/va"}},
		"it is to be detached":           {va(recorded, attached), va(recorded, attached, going), []string{"attachment/va"}},
		"it is let go, others keep it":   {va(recorded, attached, going), va(attached, going), nil},
		"somebody takes our finalizer":   {va(recorded, attached), va(attached), []string{"attachment/va"}},
		"it goes after its detach":       {va(attached, going), nil, []string{"attachment/va", "volume/pv"}},
		"it goes before it was attached": {va(), nil, []string{"attachment/va", "volume/pv"}},
		"it goes without a detach":       {va(recorded, attached), nil, []string{"attachment/va", "volume/pv"}},
		"one without an object goes":     {va(inline, recorded), nil, []string{"attachment/va"}},
		"another one takes its name": {
			va(recorded), va(func(a *storagev1.VolumeAttachment) { a.UID = "new" }), []string{"attachment/va", "volume/pv"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := []runtime.Object{pv(), csiNode(), node()}
				if c.before != nil {
					objects = append(objects, c.before)
				}
				l := newLooks(t, nil, objects...)
				if c.before == nil {
					l.at()
				} else {
					l.at("attachment/" + c.before.Name)
				}
				all := l.client.StorageV1().VolumeAttachments()
				switch {
				case c.after == nil:
					l.ok(nil, all.Delete(t.Context(), c.before.Name, metav1.DeleteOptions{}))
				case c.before == nil:
					l.ok(all.Create(t.Context(), c.after, metav1.CreateOptions{}))
				case c.before.UID != c.after.UID:
					l.ok(nil, all.Delete(t.Context(), c.after.Name, metav1.DeleteOptions{}))
					l.ok(all.Create(t.Context(), c.after, metav1.CreateOptions{}))
				default:
					l.ok(all.Update(t.Context(), c.after, metav1.UpdateOptions{}))
				}
				l.at(c.want...)
			})
		})
	}
}

// TestOthersWake: whatever an attachment waits for, its volume's object, its node's
// registration, or its driver, wakes it, and no other one; a volume's object that
// is to be deleted is looked at.
func TestOthersWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLooks(t, nil, va(), va(another), csiNode())
		ctx, volumes, nodes := t.Context(), l.client.CoreV1().PersistentVolumes(), l.client.StorageV1().CSINodes()
		l.at("attachment/va", "attachment/va-2")

		l.ok(volumes.Create(ctx, pv(), metav1.CreateOptions{}))
		l.at("attachment/va")
		l.ok(volumes.Update(ctx, pv(func(v *corev1.PersistentVolume) { v.Labels = nil }), metav1.UpdateOptions{}))
		l.at()
		l.ok(volumes.Update(ctx, pv(func(v *corev1.PersistentVolume) {
			v.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}), metav1.UpdateOptions{}))
		l.at("volume/pv")
		l.ok(nil, volumes.Delete(ctx, "pv", metav1.DeleteOptions{}))
		l.at()

		l.ok(nodes.Update(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.UpdateOptions{}))
		l.at("attachment/va")
		l.ok(nodes.Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, metav1.CreateOptions{}))
		l.at("attachment/va-2")
		l.ok(nil, nodes.Delete(ctx, "n1", metav1.DeleteOptions{}))
		l.at()

		l.drivers.Put(&csi.Driver{Name: driverName})
		l.at("attachment/va", "driver/d.example")
		l.drivers.Put(&csi.Driver{Name: "e.example"})
		l.at("attachment/va-2", "driver/e.example")
	})
}
