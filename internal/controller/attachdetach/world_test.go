package attachdetach_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/attachdetach"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const driver = "d.example"

const (
	// soon is longer than the controller's pause between two reconciles of a node.
	soon = time.Second
	// rest is how long it rests while volumes are on their way to a node.
	rest = 50 * time.Millisecond
	// patience is how long a node that is not ready may take to unmount.
	patience = 6 * time.Minute
)

// world is a World in which the test also plays the attacher and the nodes.
type world struct{ *kubetest.World }

// inWorld plays in a world that has objects at its start.
func inWorld(t *testing.T, o attachdetach.Options, play func(*world), objects ...runtime.Object) {
	t.Helper()
	o.Now = time.Now
	kubetest.InWorld(t, func(env controller.Env) *controller.Controller { return attachdetach.New(env, o) },
		func(w *kubetest.World) { play(&world{w}) }, objects...)
}

func (w *world) pass(d time.Duration) { kubetest.Pass(d) }

// change updates an object as another client, and delivers the event to the controller.
func change[T runtime.Object](w *world, of kubetest.Objects[T], name string, f func(T)) {
	w.Helper()
	kubetest.Change(w.Users, of, name, f)
}

// gone removes an object unconditionally, and delivers the event to the controller.
func gone[T runtime.Object](w *world, of kubetest.Objects[T], name string) {
	w.Helper()
	kubetest.Remove(w.Users, of, name)
}

func (w *world) pods() kubetest.Objects[*corev1.Pod] { return w.Pods("ns") }

func (w *world) claims() kubetest.Objects[*corev1.PersistentVolumeClaim] { return w.Claims("ns") }

// uses sets a node's volumesInUse.
func (w *world) uses(node string, volumes ...string) {
	w.Helper()
	change(w, w.Nodes(), node, using(volumes...))
}

// all returns all attachments.
func (w *world) all() []storagev1.VolumeAttachment {
	w.Helper()
	list, err := w.Users.StorageV1().VolumeAttachments().List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b storagev1.VolumeAttachment) int { return strings.Compare(place(&a), place(&b)) })
	return list.Items
}

// attacher plays the attacher until it has nothing to do.
func (w *world) attacher() {
	w.Helper()
	for _, a := range w.all() {
		switch {
		case a.DeletionTimestamp != nil && attach.HasFinalizer(&a):
			change(w, w.Attachments(), a.Name, func(a *storagev1.VolumeAttachment) { a.Finalizers = nil })
		case a.DeletionTimestamp == nil && !a.Status.Attached:
			change(w, w.Attachments(), a.Name, attached)
		}
	}
}

// are compares all attachments, whole, with what is wanted.
func (w *world) are(want ...*storagev1.VolumeAttachment) {
	w.Helper()
	got := []*storagev1.VolumeAttachment{}
	for _, a := range w.all() {
		got = append(got, &a)
	}
	slices.SortFunc(want, func(a, b *storagev1.VolumeAttachment) int { return strings.Compare(place(a), place(b)) })
	if diff := cmp.Diff(want, got, kubetest.Whole()); diff != "" {
		w.Errorf("attachments (-want +got):\n%s", diff)
	}
}

// knows compares a node's whole volumesAttached with the volumes wanted.
func (w *world) knows(name string, volumes ...string) {
	w.Helper()
	n, err := w.Users.CoreV1().Nodes().Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	want := []corev1.AttachedVolume{}
	for _, v := range volumes {
		want = append(want, corev1.AttachedVolume{Name: unique(v)})
	}
	if diff := cmp.Diff(want, n.Status.VolumesAttached, kubetest.Whole()); diff != "" {
		w.Errorf("node %s knows (-want +got):\n%s", name, diff)
	}
}

// heard compares all events so far with what is wanted.
func (w *world) heard(want ...string) {
	w.Helper()
	w.Heard(readable, want...)
}

// writes compares all writes of the controller with those wanted.
func (w *world) writes(want ...string) {
	w.Helper()
	got := []string{}
	for _, line := range w.Writes() {
		got = append(got, readable(line))
	}
	if diff := cmp.Diff(want, got, kubetest.Whole()); diff != "" {
		w.Errorf("writes (-want +got):\n%s", diff)
	}
}

// readable makes the names of attachments readable in the output.
func readable(text string) string {
	var names []string
	for _, v := range []string{"a", "b"} {
		for _, n := range []string{"n1", "n2"} {
			names = append(names, attach.NameOf(driver, "h-"+v, n), v+">"+n)
		}
	}
	return strings.NewReplacer(names...).Replace(text)
}

// place returns the volume and the node of an attachment.
func place(a *storagev1.VolumeAttachment) string {
	return ptr.Deref(a.Spec.Source.PersistentVolumeName, "") + ">" + a.Spec.NodeName
}

func unique(v string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^h-" + v)
}

// attachment is the attachment of a volume to a node in the form that the controller creates.
func attachment(v, node string, change ...func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attach.NameOf(driver, "h-"+v, node)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v},
		},
	}
	for _, f := range change {
		f(a)
	}
	return a
}

// attached is what the attacher makes of an attachment.
func attached(a *storagev1.VolumeAttachment) {
	a.Finalizers = []string{volume.AttacherFinalizer(driver)}
	a.Status.Attached, a.Status.AttachmentMetadata = true, map[string]string{"device": "/dev/x"}
}

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, f := range change {
		f(n)
	}
	return n
}

func using(volumes ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.VolumesInUse = nil
		for _, v := range volumes {
			n.Status.VolumesInUse = append(n.Status.VolumesInUse, unique(v))
		}
	}
}

func down(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
func up(n *corev1.Node)   { n.Status.Conditions[0].Status = corev1.ConditionTrue }

func outOfService(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
}

// bound is a volume for one node at a time, and its claim.
func bound(name string, change ...func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)) []runtime.Object {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h-" + name}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID("c-" + name)}
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("c-" + name)},
	}
	c.Spec.VolumeName, c.Status.Phase = name, corev1.ClaimBound
	for _, f := range change {
		f(v, c)
	}
	return []runtime.Object{v, c}
}

// pod is a Pod of a node that uses claims.
func pod(name, node string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("p-" + name)},
		Spec:       corev1.PodSpec{NodeName: node},
	}
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
			Name: c, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
			},
		})
	}
	return p
}

func objects(o ...runtime.Object) []runtime.Object { return o }

func volumeOf(name string) *corev1.PersistentVolume { return bound(name)[0].(*corev1.PersistentVolume) }

// csiNode is a CSINode as the node's agent writes it.
func csiNode(name string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "other", NodeID: "wrong"}, {Name: driver, NodeID: "id-" + name}}
	return n
}

func knowing(volumes ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.VolumesAttached = nil
		for _, v := range volumes {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: unique(v)})
		}
	}
}

// tells is the write that sets a node's volumesAttached.
func tells(node string, volumes ...string) string {
	told := []string{}
	for _, v := range volumes {
		told = append(told, fmt.Sprintf(`{"name":%q,"devicePath":""}`, unique(v)))
	}
	return fmt.Sprintf(`patch nodes/status %s {"status":{"volumesAttached":[%s]}}`, node, strings.Join(told, ","))
}

// patches compares the patches of volumesAttached, in order, with those wanted.
func (w *world) patches(want ...string) {
	w.Helper()
	got := slices.DeleteFunc(kubetest.Writes(w.Own), func(line string) bool { return !strings.HasPrefix(line, "patch ") })
	if diff := cmp.Diff(want, got, kubetest.Whole()); diff != "" {
		w.Errorf("volumesAttached (-want +got):\n%s", diff)
	}
}

// recorded is an attachment on which stands what it is for.
func recorded(a *storagev1.VolumeAttachment) {
	a.Annotations = map[string]string{volume.AnnNodeID: "id-" + a.Spec.NodeName, volume.AnnDetach: `{"handle":"h-` +
		*a.Spec.Source.PersistentVolumeName + `"}`}
}
