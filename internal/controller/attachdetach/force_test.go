package attachdetach

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// TestForceDetach: a node that does not answer has six minutes to unmount what
// nobody wants any more, a node that answers has for ever.
func TestForceDetach(t *testing.T) {
	for _, c := range []struct {
		name   string
		ready  corev1.ConditionStatus
		waited time.Duration
		gone   bool
	}{
		{"dead and early", corev1.ConditionUnknown, maxUnmount - time.Second, false},
		{"dead and late", corev1.ConditionUnknown, maxUnmount, true},
		{"alive and late", corev1.ConditionTrue, maxUnmount, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var moved atomic.Int64
			now := func() time.Time { return time.Unix(1e9, moved.Load()) }
			reconcile, exists := unwanted(t, c.ready, now)
			if left := reconcile(); left != maxUnmount {
				t.Errorf("the first look waits for %s", left)
			}
			moved.Store(int64(c.waited))
			if left := reconcile(); left != 0 && left != maxUnmount-c.waited {
				t.Errorf("the second look waits for %s", left)
			}
			if exists() == c.gone {
				t.Errorf("attachment exists: %v", !c.gone)
			}
		})
	}
}

// unwanted is a node that says that it uses a volume which no Pod wants. It
// returns a look at the node, which tells when the next one is due, and whether
// the attachment is there.
func unwanted(t *testing.T, ready corev1.ConditionStatus, now func() time.Time) (reconcile func() time.Duration, exists func() bool) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName("d", "h"))}
	va := attachment()
	client, c := world(t, now, node, va)
	return func() time.Duration { return look(t, c, va.Name) }, func() bool {
		_, err := client.StorageV1().VolumeAttachments().Get(t.Context(), va.Name, metav1.GetOptions{})
		return !apierrors.IsNotFound(err)
	}
}

// attachment is that of volume pv to node n1.
func attachment() *storagev1.VolumeAttachment {
	name := "pv"
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attach.NameOf("d", "h", "n1"), UID: "u", ResourceVersion: "7"},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}},
	}
}

// world is the controller over volume pv and other objects.
func world(t *testing.T, now func() time.Time, objects ...runtime.Object) (*fake.Clientset, *controller.Controller) {
	t.Helper()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}
	client := fake.NewClientset(append(objects, pv)...)
	caches := kube.NewCaches(client)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := New(controller.Env{Client: client, Caches: caches, Events: kube.NewRecorder(ctx, client, "test"), Log: slog.New(slog.DiscardHandler)}, Options{Now: now})
	if err := caches.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return client, c
}

// look has the controller look at n1 and at the attachment.
func look(t *testing.T, c *controller.Controller, attachment string) time.Duration {
	t.Helper()
	result, err := c.Reconcile(t.Context(), controller.Key{Kind: kindNode, Name: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Reconcile(t.Context(), controller.Key{Kind: kindDetach, Name: attachment}); err != nil {
		t.Fatal(err)
	}
	return result.After
}

// TestDeletionOfAVersion: an attachment is deleted as it was seen, as long as it
// could go without a detach; with the attacher's finalizer whatever it says.
func TestDeletionOfAVersion(t *testing.T) {
	for name, finalizers := range map[string][]string{"7": nil, "": {volume.AttacherFinalizer("d")}} {
		va := attachment()
		va.Finalizers = finalizers
		client, c := world(t, time.Now, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, va)
		look(t, c, va.Name)
		var got []metav1.DeleteOptions
		for _, a := range client.Actions() {
			if d, ok := a.(clienttesting.DeleteActionImpl); ok {
				got = append(got, d.DeleteOptions)
			}
		}
		if len(got) != 1 || ptr.Deref(got[0].Preconditions.UID, "") != "u" || ptr.Deref(got[0].Preconditions.ResourceVersion, "") != name {
			t.Errorf("finalizers %v: deleted by %v", finalizers, got)
		}
	}
}

func never() bool { return false }

func TestReservations(t *testing.T) {
	m := newMemory()
	if m.take("v", "n1", func() bool { return true }) {
		t.Error("a volume that is seen elsewhere was reserved")
	}
	for range 2 {
		if !m.take("v", "n1", never) {
			t.Error("a reservation does not hold for its own node")
		}
	}
	if m.take("v", "n2", never) {
		t.Error("a reservation is for one node")
	}
	m.free("v", "n2")
	if m.take("v", "n2", never) {
		t.Error("a node ended another one's reservation")
	}
	if freed := m.freeUnwanted("n1", map[string]bool{"v": true}); len(freed) > 0 {
		t.Errorf("%v is still wanted", freed)
	}
	if freed := m.freeUnwanted("n1", nil); len(freed) != 1 || !m.take("v", "n2", never) {
		t.Errorf("freed %v; want v for n2", freed)
	}
}

func TestWaits(t *testing.T) {
	m, start := newMemory(), time.Unix(1e9, 0)
	m.wait("u", start)
	m.wantedAgain("u")
	if left := m.wait("u", start.Add(time.Hour)); left != maxUnmount || m.overdue("u", start.Add(time.Hour)) {
		t.Errorf("a wait that begins anew lasts %s", left)
	}
	m.goes("u")
	if m.shown("u"); m.isGoing("u") || m.overdue("u", start.Add(24*time.Hour)) {
		t.Error("an attachment that is gone is remembered")
	}
}

// TestCreations: an attachment is made once, and its volume stays reserved until
// it is known what became of it.
func TestCreations(t *testing.T) {
	m, start := newMemory(), time.Unix(1e9, 0)
	a := creationOf("v")
	m.take("v", "n1", never)
	if !m.make(a) || m.make(a) {
		t.Error("an attachment is noted once")
	}
	if freed := m.freeUnwanted("n1", nil); len(freed) > 0 {
		t.Errorf("%v may be under way and is free", freed)
	}
	if _, noted := m.toMake("va"); !noted {
		t.Error("it is not made yet")
	}
	m.isMade("va", start)
	if _, noted := m.toMake("va"); noted {
		t.Error("it is made again")
	}
	if drivers, again := m.beingMade("n1", start.Add(time.Second)); drivers["va"] != "d" || again != maxUnseen-time.Second {
		t.Errorf("being made: %v, looked at again in %s", drivers, again)
	}
	if drivers, again := m.beingMade("n1", start.Add(maxUnseen)); len(drivers) > 0 || again != 0 {
		t.Errorf("it never shows and is waited for: %v %s", drivers, again)
	}
}

// TestRefusedCreations are tried again while they are wanted, and no longer.
func TestRefusedCreations(t *testing.T) {
	m := newMemory()
	m.take("v", "n1", never)
	m.make(creationOf("v"))
	m.isRefused("va")
	if freed := m.freeUnwanted("n1", map[string]bool{"v": true}); len(freed) > 0 || len(m.making) != 1 {
		t.Errorf("what is wanted is tried again: freed %v", freed)
	}
	if freed := m.freeUnwanted("n1", nil); len(freed) != 1 || len(m.making) > 0 {
		t.Errorf("what was refused and is not wanted is given up: freed %v", freed)
	}
}

// creationOf is the attachment va of a volume to n1.
func creationOf(name string) attach.Attachable {
	return attach.Attachable{
		Attachment: &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: "n1"}},
		Volume:     &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}},
	}
}

func TestNews(t *testing.T) {
	m := newMemory()
	if !m.news("pod", "v", "no") || m.news("pod", "v", "no") || !m.news("pod", "w", "no") || !m.news("pod", "v", "never") {
		t.Error("each warning is news once, for each volume")
	}
	if m.forgetPod("pod"); len(m.told) > 0 {
		t.Error("a Pod that is gone is remembered")
	}
}
