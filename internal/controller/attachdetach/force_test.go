package attachdetach

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestForceDetach: a node that does not respond has six minutes to unmount what no Pod uses any more, as in Kubernetes;
// a node that responds has no time limit.
func TestForceDetach(t *testing.T) {
	const limit = 6 * time.Minute
	for _, c := range []struct {
		name   string
		ready  corev1.ConditionStatus
		waited time.Duration
		gone   bool
	}{
		{"dead and early", corev1.ConditionUnknown, limit - time.Second, false},
		{"dead and late", corev1.ConditionUnknown, limit, true},
		{"alive and late", corev1.ConditionTrue, limit, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var moved atomic.Int64
			now := func() time.Time { return time.Unix(1e9, moved.Load()) }
			reconcile, exists := unwanted(t, c.ready, now)
			if left := reconcile(); left != limit {
				t.Errorf("the first look waits for %s", left)
			}
			moved.Store(int64(c.waited))
			if left := reconcile(); left != 0 && left != limit-c.waited {
				t.Errorf("the second look waits for %s", left)
			}
			if exists() == c.gone {
				t.Errorf("attachment exists: %v", !c.gone)
			}
		})
	}
}

// TestForceDetachIsForbidden: without force detach, a node that does not respond has no time limit either, and one
// event says how to end the wait.
func TestForceDetachIsForbidden(t *testing.T) {
	var moved atomic.Int64
	now := func() time.Time { return time.Unix(1e9, moved.Load()) }
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName("d", "h"))}
	va := attachment()
	client, c := world(t, Options{Now: now, DisableForceDetachOnTimeout: true}, node, va)
	told := make(chan *corev1.Event, 100)
	client.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		told <- a.(clienttesting.CreateAction).GetObject().(*corev1.Event)
		return false, nil, nil
	})
	for _, waited := range []time.Duration{0, 6*time.Minute - 1, 6 * time.Minute, 24 * time.Hour} {
		moved.Store(int64(waited))
		look(t, c, va.Name)
		if waited < 6*time.Minute && len(told) > 0 {
			t.Errorf("an event after %s: %v", waited, <-told)
		}
	}
	if _, err := client.StorageV1().VolumeAttachments().Get(t.Context(), va.Name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	kinds := map[string]int{}
	for range 2 {
		e := within(t, told)
		kinds[e.InvolvedObject.Kind]++
		if e.Type != corev1.EventTypeWarning || !strings.Contains(e.Message, "--disable-force-detach-on-timeout") ||
			!strings.Contains(e.Message, corev1.TaintNodeOutOfService) {
			t.Errorf("event: %+v", e)
		}
	}
	if kinds["VolumeAttachment"] != 1 || kinds["Node"] != 1 {
		t.Errorf("events about %v", kinds)
	}
}

// within returns the next that comes.
func within[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case x := <-from:
		return x
	case <-time.After(time.Minute):
		t.Fatal("nothing comes")
		panic("unreachable")
	}
}

// unwanted starts with a node that reports a volume in use which no Pod wants. It returns a function that reconciles
// the node and returns the delay until the next reconcile, and one that says whether the attachment still exists.
func unwanted(
	t *testing.T, ready corev1.ConditionStatus, now func() time.Time,
) (reconcile func() time.Duration, exists func() bool) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName("d", "h"))}
	va := attachment()
	client, c := world(t, Options{Now: now}, node, va)
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
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "d", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
		},
	}
}

// world is the controller over volume pv and other objects.
func world(t *testing.T, o Options, objects ...runtime.Object) (*kubetest.API, *attachDetach) {
	t.Helper()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}
	return started(t, o, append(objects, pv)...)
}

// started is the controller over objects.
func started(t *testing.T, o Options, objects ...runtime.Object) (*kubetest.API, *attachDetach) {
	t.Helper()
	client := kubetest.NewAPI(t, objects...)
	var c *attachDetach
	client.Begin(func(env controller.Env) *controller.Controller {
		c = build(env, o)
		return c.Controller
	})
	return client, c
}

// look reconciles n1 without the pause after its last reconcile, and then the attachment.
func look(t *testing.T, c *attachDetach, attachment string) time.Duration {
	t.Helper()
	c.delay("n1", time.Time{})
	result, err := c.Reconcile(t.Context(), controller.Key{Kind: kindNode, Name: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Reconcile(t.Context(), controller.Key{Kind: kindDetach, Name: attachment}); err != nil {
		t.Fatal(err)
	}
	return result.After
}

// TestDeletionOfAVersion: an attachment that could disappear without a detach is deleted only in the version that was
// read; one with the attacher's finalizer in any version.
func TestDeletionOfAVersion(t *testing.T) {
	for name, finalizers := range map[string][]string{"1": nil, "": {volume.AttacherFinalizer("d")}} {
		va := attachment()
		va.Finalizers = finalizers
		client, c := world(t, Options{Now: time.Now}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, va)
		look(t, c, va.Name)
		var got []metav1.DeleteOptions
		for _, a := range client.Actions() {
			if d, ok := a.(clienttesting.DeleteActionImpl); ok {
				got = append(got, d.DeleteOptions)
			}
		}
		if len(got) != 1 || ptr.Deref(got[0].Preconditions.UID, "") != "u" ||
			ptr.Deref(got[0].Preconditions.ResourceVersion, "") != name {
			t.Errorf("finalizers %v: deleted by %v", finalizers, got)
		}
	}
}

// used is a volume for one node, its claim, and a Pod of a node that uses it.
func used(pv, handle, node string) []runtime.Object {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv}}
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v.Spec.CSI, v.Spec.ClaimRef = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: handle},
		&corev1.ObjectReference{Namespace: "ns", Name: pv, UID: "c"}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: pv, UID: "c"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: pv},
	}
	claim.Status.Phase = corev1.ClaimBound
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + pv, UID: types.UID("p-" + pv)},
		Spec:       corev1.PodSpec{NodeName: node},
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: pv},
	}}}
	return []runtime.Object{v, claim, pod}
}

// TestTwoObjectsOfOneVolume: two PersistentVolumes refer to the same volume at the driver, which only one node may use.
// The second object does not attach it to a second node, whether the first attachment exists or is only about to be
// created.
func TestTwoObjectsOfOneVolume(t *testing.T) {
	objects := append(used("pv", "h", "n1"), used("again", "h", "n2")...)
	for _, node := range []string{"n1", "n2"} {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}
	for name, more := range map[string][]runtime.Object{"there": {attachment()}, "about to be made": nil} {
		t.Run(name, func(t *testing.T) {
			client, c := started(t, Options{Now: time.Now}, append(slices.Clone(objects), more...)...)
			for _, node := range []string{"n1", "n2"} {
				if _, err := c.Reconcile(t.Context(), controller.Key{Kind: kindNode, Name: node}); err != nil {
					t.Fatal(err)
				}
			}
			for _, node := range []string{"n1", "n2"} {
				if _, err := c.Reconcile(t.Context(),
					controller.Key{Kind: kindAttach, Name: attach.NameOf("d", "h", node)}); err != nil {
					t.Fatal(err)
				}
			}
			all, err := client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(all.Items) != 1 || all.Items[0].Spec.NodeName != "n1" {
				t.Errorf("attachments: %v, %v; want the one to n1", all.Items, err)
			}
		})
	}
}

// TestAttachmentThatIsThere: a creation whose response was lost, or that another process made first, counts as done:
// the attachment's name proves that it is the same.
func TestAttachmentThatIsThere(t *testing.T) {
	client, c := started(t, Options{Now: time.Now},
		append(used("pv", "h", "n1"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})...)
	creations := 0
	client.PrependReactor("create", "volumeattachments", func(a clienttesting.Action) (bool, runtime.Object, error) {
		creations++
		if err := client.Tracker().Add(a.(clienttesting.CreateAction).GetObject()); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewAlreadyExists(storagev1.Resource("volumeattachments"), "there")
	})
	if _, err := c.Reconcile(t.Context(), controller.Key{Kind: kindNode, Name: "n1"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := c.Reconcile(t.Context(),
			controller.Key{Kind: kindAttach, Name: attach.NameOf("d", "h", "n1")}); err != nil {
			t.Error(err)
		}
	}
	if creations != 1 {
		t.Errorf("it was to be made %d times", creations)
	}
}

func never() bool { return false }

func TestReservations(t *testing.T) {
	m := newMemory(attach.MaxUnmount)
	if m.reserve("v", "n1", func() bool { return true }) {
		t.Error("a volume that is seen elsewhere was reserved")
	}
	for range 2 {
		if !m.reserve("v", "n1", never) {
			t.Error("a reservation does not hold for its own node")
		}
	}
	if m.reserve("v", "n2", never) {
		t.Error("a reservation is for one node")
	}
	if freed := m.releaseUnwanted("n2", nil); len(freed) > 0 || m.reserve("v", "n2", never) {
		t.Error("a node ended another one's reservation")
	}
	if freed := m.releaseUnwanted("n1", map[string]bool{"v": true}); len(freed) > 0 {
		t.Errorf("%v is still wanted", freed)
	}
	if freed := m.releaseUnwanted("n1", nil); len(freed) != 1 || !m.reserve("v", "n2", never) {
		t.Errorf("freed %v; want v for n2", freed)
	}
}

func TestWaits(t *testing.T) {
	m, start := newMemory(attach.MaxUnmount), time.Unix(1e9, 0)
	m.awaitUnmount("u", start)
	m.cancelUnmount("u")
	if left := m.awaitUnmount("u", start.Add(time.Hour)); left != attach.MaxUnmount ||
		m.overdue("u", start.Add(time.Hour)) {
		t.Errorf("a new wait lasts %s", left)
	}
	for _, forget := range []func(types.UID){m.cancelUnmount, m.forgetAttachment} {
		if m.addWarning("u", "v", "stuck"); m.addWarning("u", "v", "stuck") {
			t.Error("the same event is recorded twice")
		}
		if forget("u"); len(m.warnings) > 0 {
			t.Error("the event of a finished wait is remembered")
		}
	}
	m.startDeletion("u")
	if m.forgetAttachment("u"); m.isDeleting("u") || m.overdue("u", start.Add(24*time.Hour)) {
		t.Error("an attachment that is gone is remembered")
	}
}

// TestCreations: an attachment is created once, and its volume stays reserved until the outcome is known.
func TestCreations(t *testing.T) {
	m, a := newMemory(attach.MaxUnmount), creationOf("v")
	m.reserve("d^v", "n1", never)
	if !m.addCreation(a) || m.addCreation(a) {
		t.Error("an attachment is noted once")
	}
	if freed := m.releaseUnwanted("n1", nil); len(freed) > 0 {
		t.Errorf("%v may be under way and is free", freed)
	}
	if _, noted := m.startCreation("va"); !noted {
		t.Error("it is not made yet")
	}
	if drivers := m.creationsOn("n1"); drivers["va"] != "d" || m.reserve("d^v", "n2", never) {
		t.Errorf("being made: %v, and another node gets its volume", drivers)
	}
	m.creationDone("va")
	if _, noted := m.startCreation("va"); noted || len(m.creationsOn("n1")) > 0 || !m.reserve("d^v", "n2", never) {
		t.Error("it is made, and not forgotten")
	}
}

// TestRefusedCreations are tried again while they are wanted, and no longer.
func TestRefusedCreations(t *testing.T) {
	m := newMemory(attach.MaxUnmount)
	m.reserve("d^v", "n1", never)
	m.addCreation(creationOf("v"))
	m.creationRefused("va")
	if freed := m.releaseUnwanted("n1", map[string]bool{"d^v": true}); len(freed) > 0 || len(m.creations) != 1 {
		t.Errorf("what is wanted is tried again: freed %v", freed)
	}
	if freed := m.releaseUnwanted("n1", nil); len(freed) != 1 || len(m.creations) > 0 {
		t.Errorf("what was refused and is not wanted is given up: freed %v", freed)
	}
}

// creationOf is the attachment va of a volume to n1.
func creationOf(handle string) attach.Attachable {
	v := &corev1.PersistentVolume{}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: handle}
	return attach.Attachable{
		Attachment: &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: "n1"},
		},
		Volume: v,
	}
}

func TestNews(t *testing.T) {
	m := newMemory(attach.MaxUnmount)
	if !m.addWarning("pod", "v", "no") || m.addWarning("pod", "v", "no") || !m.addWarning("pod", "w", "no") ||
		!m.addWarning("pod", "v", "never") {
		t.Error("each warning is news once, for each volume")
	}
	if m.forgetPod("pod"); len(m.warnings) > 0 {
		t.Error("a Pod that is gone is remembered")
	}
}
