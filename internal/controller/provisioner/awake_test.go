package provisioner

import (
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// neighbours are claims and volumes of which each event concerns some.
func neighbours() []runtime.Object {
	bound := claim("bound")
	bound.Spec.VolumeName = "pv"
	copied := claim("copy")
	copied.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "bound"}
	slow := claim("slow")
	slow.Spec.StorageClassName = ptr.To("slow")
	other := plainVolume("c")
	other.Name, other.Spec.CSI.Driver, other.Spec.ClaimRef.UID = "other", "other.example", ""
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}}
	va.Spec.Source.PersistentVolumeName = ptr.To("pv")
	inline := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "inline"}}
	return []runtime.Object{claim("c"), bound, copied, slow, other, va, inline}
}

func everybody() []string {
	return []string{"intents/", "snapshot/", "claim/u-c", "claim/u-bound", "claim/u-copy", "claim/u-slow", "volume/other"}
}

// event is something that happens, and what is to be looked at then.
type event struct {
	does func(*bench)
	want []string
}

// comes is an object that is made.
func comes(o runtime.Object, want ...string) event {
	return event{func(b *bench) {
		if err := b.api.Tracker().Add(o); err != nil {
			b.t.Fatal(err)
		}
	}, want}
}

func goes(resource schema.GroupVersionResource, namespace, name string, want ...string) event {
	return event{func(b *bench) {
		if err := b.api.Tracker().Delete(resource, namespace, name); err != nil {
			b.t.Fatal(err)
		}
	}, want}
}

// change has somebody change an object.
func change[T runtime.Object](b *bench, of kubetest.Objects[T], name string, f func(T)) {
	b.t.Helper()
	kubetest.Quietly(b.api.API, of, name, f)
}

func (b *bench) changeClaim(name string, f func(*corev1.PersistentVolumeClaim)) {
	all := b.api.CoreV1().PersistentVolumeClaims("ns")
	change(b, all, name, f)
}

// TestWhoIsWoken: each change has looked at whom it concerns, and nobody else.
func TestWhoIsWoken(t *testing.T) {
	v := plainVolume("bound")
	v.Name = "pv"
	_, n := node("n-a", "a")
	core, store := corev1.SchemeGroupVersion, storagev1.SchemeGroupVersion
	classComes, nodeComes := comes(class(), "claim/u-c", "claim/u-bound", "claim/u-copy"),
		comes(n, "claim/u-c", "claim/u-copy", "claim/u-slow")
	volumeComes := comes(v, "volume/pv", "claim/u-bound")
	label := map[string]string{"a": "b"}
	for name, events := range map[string][]event{
		"a claim changes": {{func(b *bench) {
			b.changeClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Labels = label })
		}, []string{"claim/u-c"}}},
		"a claim gets a volume": {{func(b *bench) {
			b.changeClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "other" })
		}, []string{"claim/u-c", "volume/other"}}},
		"a claim goes": {
			volumeComes, goes(core.WithResource("persistentvolumeclaims"), "ns", "bound", "claim/u-bound", "volume/pv"),
		},
		"a claim is bound, and can be copied": {{func(b *bench) {
			b.changeClaim("bound", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound })
		}, []string{"claim/u-bound", "claim/u-copy"}}, {func(b *bench) {
			b.changeClaim("bound", func(c *corev1.PersistentVolumeClaim) { c.Labels = label })
		}, []string{"claim/u-bound"}}},
		"a volume changes": {volumeComes, {func(b *bench) {
			all := b.api.CoreV1().PersistentVolumes()
			change(b, all, "pv", func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased })
		}, []string{"claim/u-bound", "volume/pv"}}, goes(core.WithResource("persistentvolumes"), "", "pv")},
		"a volume without a claim's uid changes": {{func(b *bench) {
			all := b.api.CoreV1().PersistentVolumes()
			change(b, all, "other", func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased })
		}, []string{"volume/other"}}},
		"a class":                 {classComes, goes(store.WithResource("storageclasses"), "", "fast")},
		"an attachment goes":      {goes(store.WithResource("volumeattachments"), "", "va", "volume/pv")},
		"one of an inline volume": {goes(store.WithResource("volumeattachments"), "", "inline")},
		"an attachment changes": {{func(b *bench) {
			all := b.api.StorageV1().VolumeAttachments()
			change(b, all, "va", func(a *storagev1.VolumeAttachment) { a.Status.Attached = true })
		}, nil}},
		"a node": {nodeComes, {func(b *bench) {
			all := b.api.StorageV1().CSINodes()
			change(b, all, "n-a", func(n *storagev1.CSINode) { n.Labels = label })
		}, nil}, {func(b *bench) {
			all := b.api.StorageV1().CSINodes()
			change(b, all, "n-a", func(n *storagev1.CSINode) { n.Spec.Drivers = nil })
		}, nodeComes.want}, goes(store.WithResource("csinodes"), "", "n-a")},
		"a driver appears": {volumeComes, {func(b *bench) {
			b.drivers.Put(b.dialed)
		}, []string{"intents/", "snapshot/", "claim/u-c", "claim/u-copy", "claim/u-slow", "volume/pv"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(s *setup) { s.hears, s.late = true, true }, neighbours()...)
			b.wakes(everybody()...)
			for _, e := range events {
				e.does(b)
				b.wakes(e.want...)
			}
			// Nobody else has been woken by the time that this is.
			b.setup.Requests.Ask("u-last", driverName)
			b.wakes("claim/u-last")
		})
	}
}

// TestABinderOfTheSameProcessAsks: what it asks for is made without a word in the
// claim, and forgotten when the claim has its volume or is gone.
func TestABinderOfTheSameProcessAsks(t *testing.T) {
	c := claim("c")
	c.Annotations = map[string]string{}
	b := newBench(t, func(s *setup) { s.hears = true }, c, class(), claim("d"))
	r := b.setup.Requests
	for driver, want := range map[string]bool{driverName: true, "other.example": false} {
		if r.Served(driver, "") != want {
			t.Errorf("serves %s: %v", driver, !want)
		}
	}
	r.Ask("u-c", driverName)
	r.Ask("u-d", driverName)
	b.works(kindClaim, "u-c")
	b.called(asksFor("c"))
	b.changeClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-u-c" })
	b.deleteClaim("d")
	b.until("both are forgotten", func() bool { return r.Asked("u-c") == "" && r.Asked("u-d") == "" })

	incapable := newBench(t, func(s *setup) { s.config.Controller.CreateDelete = false })
	if incapable.setup.Requests.Served(driverName, "") {
		t.Error("serves a driver that makes no volumes")
	}
}

// TestADriverThatIsNewIsAskedAtOnce: it may answer otherwise.
func TestADriverThatIsNewIsAskedAtOnce(t *testing.T) {
	b := newBench(t, nil, claim("c"), class())
	b.fails("CreateVolume", no(codes.InvalidArgument), false)
	for range 3 {
		b.errs(kindClaim, "u-c", "InvalidArgument")
		b.drivers.Put(b.dialed)
	}
	b.fails("CreateVolume", nil, false)
	b.works(kindClaim, "u-c")
	b.volumesAre(plainVolume("c"))
}

// TestWhatIsOpenIsWoken: by the first look at the log, and by its driver.
func TestWhatIsOpenIsWoken(t *testing.T) {
	b := newBench(t, nil, left(), key())
	b.forgetsWakes("snapshot/")
	b.sweeps()
	b.wakes("claim/u-c")
	b.drivers.Put(b.dialed)
	b.wakes("claim/u-c", "intents/", "snapshot/")
	// What an earlier life has left is swept at once.
	b.works(kindClaim, "u-c")
	b.wakes("intents/")
}

// TestASavedVolumeIsSeen: the intent is resolved when the object is written, which is
// seen from then on, and the claim asks for nothing more.
func TestASavedVolumeIsSeen(t *testing.T) {
	b := newBench(t, nil, claim("c"), class())
	b.works(kindClaim, "u-c")
	b.sweeps()
	b.open()
	b.works(kindClaim, "u-c")
	b.called(asksFor("c"))
	b.sweeps()
	b.open()
}

// TestDeclaration: what it may do beside a driver is what it needs, with a log of
// its own.
func TestDeclaration(t *testing.T) {
	d := DeclarationWith(oneLog())
	if d.Name != "provisioner" || len(d.Inputs) != 6 || len(d.Outputs) != 8 {
		t.Errorf("declaration %+v", d)
	}
	if got := oneLog().Own; got.Namespace != volume.NamespaceSystem || got.Name != "volplane-intents" {
		t.Errorf("log at %+v", got)
	}
}
