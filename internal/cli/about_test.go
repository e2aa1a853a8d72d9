package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/why"
)

// town is a cluster of many claims, two of which matter: data, which is bound, and
// late, which waits.
func town() *fake.Clientset {
	const driver = "d.example.com"
	objects := []runtime.Object{
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: driver},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
	}
	for _, name := range []string{"n1", "n2"} {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name}},
		}})
	}
	for _, name := range []string{"late", "data", "c1", "c2", "c3"} {
		objects = append(objects, resident(name, driver)...)
	}
	return fake.NewClientset(objects...)
}

// resident returns a claim, and unless it is late, its volume, its Pod on node n1 and
// its attachment there, which only that of data does not have.
func resident(name, driver string) []runtime.Object {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name,
		UID: types.UID("uid-" + name),
	}}
	c.Spec.StorageClassName, c.Status.Phase = ptr.To("fast"), corev1.ClaimPending
	if name == "late" {
		return []runtime.Object{c}
	}
	c.Spec.VolumeName, c.Status.Phase = "pv-"+name, corev1.ClaimBound
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: name, UID: c.UID}
	v.Status.Phase = corev1.VolumeBound
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + name}}
	p.Spec.NodeName = "n1"
	p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	p.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
	if name == "data" {
		return []runtime.Object{c, v, p}
	}
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a-" + name}}
	a.Spec = storagev1.VolumeAttachmentSpec{
		Attacher: driver, NodeName: "n1",
		Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
	}
	a.Status.Attached = true
	return []runtime.Object{c, v, p, a}
}

// requests returns what was asked of the API server, in the order of the alphabet.
func requests(client *fake.Clientset) string {
	var out []string
	for _, a := range client.Actions() {
		text := a.GetVerb() + " " + a.GetResource().Resource
		if a.GetNamespace() != "" {
			text += " in " + a.GetNamespace()
		}
		switch a := a.(type) {
		case clienttesting.GetAction:
			text += " " + a.GetName()
		case clienttesting.ListAction:
			r := a.GetListRestrictions()
			text += strings.TrimRight(fmt.Sprintf(" %s %s", r.Fields, r.Labels), " ")
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, "\n") + "\n"
}

// TestOneObjectIsReadWithFewRequests: of the kinds that are many, only what concerns
// the object is asked for, as far as the API can select it.
func TestOneObjectIsReadWithFewRequests(t *testing.T) {
	const small = "list csidrivers\nlist csinodes\nlist leases\nlist nodes\nlist storageclasses\n" +
		"list configmaps in kube-system  volplane.dev/flex-migration\n"
	for _, c := range []struct{ kind, name, want string }{
		{"pvc", "late", small + `get persistentvolumeclaims in ns late
list configmaps  volplane.dev/intents
list events in default involvedObject.kind=StorageClass,involvedObject.name=fast,type=Warning
list events in ns involvedObject.kind=PersistentVolumeClaim,involvedObject.name=late,type=Warning
list pods in ns
`},
		{"pvc", "c1", small + `get persistentvolumeclaims in ns c1
get persistentvolumes pv-c1
list events in default involvedObject.kind=PersistentVolume,involvedObject.name=pv-c1,type=Warning
list events in default involvedObject.kind=VolumeAttachment,involvedObject.name=a-c1,type=Warning
list events in ns involvedObject.kind=PersistentVolumeClaim,involvedObject.name=c1,type=Warning
list events in ns involvedObject.kind=Pod,involvedObject.name=pod-c1,type=Warning
list pods in ns
list volumeattachments
`},
		{"pv", "pv-c1", small + `get persistentvolumeclaims in ns c1
get persistentvolumes pv-c1
list events in default involvedObject.kind=PersistentVolume,involvedObject.name=pv-c1,type=Warning
list events in default involvedObject.kind=VolumeAttachment,involvedObject.name=a-c1,type=Warning
list events in ns involvedObject.kind=PersistentVolumeClaim,involvedObject.name=c1,type=Warning
list events in ns involvedObject.kind=Pod,involvedObject.name=pod-c1,type=Warning
list pods in ns
list volumeattachments
`},
	} {
		client := town()
		k, err := kindOf(c.kind)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, found, err := k.explain(t.Context(), client, "ns", c.name); err != nil || !found {
			t.Fatalf("%s/%s: found %v, %v", c.kind, c.name, found, err)
		}
		want := slices.Sorted(strings.Lines(c.want))
		if got := requests(client); got != strings.Join(want, "") {
			t.Errorf("%s/%s asked for\n%s\nwant\n%s", c.kind, c.name, got, strings.Join(want, ""))
		}
	}
}

// TestNoListOfAllThatIsMany: whatever is asked of one object, neither all volumes nor
// the claims, Pods and events of all namespaces are listed, but for the kinds whose
// answer is about all of these.
func TestNoListOfAllThatIsMany(t *testing.T) {
	many := []string{"list persistentvolumes", "list persistentvolumeclaims", "list pods", "list events"}
	for _, c := range []struct {
		kind, name string
		may        []string
	}{
		{"pvc", "data", nil},
		{"pv", "pv-data", nil},
		{"pod", "pod-data", nil},
		{"pod", "pod-c1", nil},
		{"volumeattachment", "a-c1", nil},
		{"namespace", "ns", nil},
		{"node", "n1", []string{"list events"}},
		{"csinode", "n1", []string{"list events"}},
		{"storageclass", "fast", []string{"list persistentvolumeclaims", "list events"}},
		{"csidriver", "d.example.com", many},
	} {
		client := town()
		k, err := kindOf(c.kind)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, found, err := k.explain(t.Context(), client, "ns", c.name); err != nil || !found {
			t.Fatalf("%s/%s: found %v, %v", c.kind, c.name, found, err)
		}
		for line := range strings.Lines(requests(client)) {
			line = strings.TrimSuffix(line, " type=Warning\n")
			if line = strings.TrimSpace(line); slices.Contains(many, line) && !slices.Contains(c.may, line) {
				t.Errorf("%s/%s: %s", c.kind, c.name, line)
			}
		}
	}
}

// TestPartsAnswerAsTheWhole: what is read for one object is enough for the answer that
// all objects give.
func TestPartsAnswerAsTheWhole(t *testing.T) {
	whole := newReading(town())
	if err := whole.all(t.Context(), metav1.NamespaceAll); err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds() {
		for _, name := range []string{
			"late", "data", "pv-data", "pod-data", "c1", "pv-c1", "pod-c1", "a-c1", "n1", "n2",
			"fast", "d.example.com",
		} {
			if slices.Contains([]string{"volumesnapshot", "volumegroupsnapshot", "namespace"}, k.name) {
				continue // which are not in the whole
			}
			part, _, found, err := k.explain(t.Context(), town(), "ns", name)
			if err != nil {
				t.Fatal(err)
			}
			all, there := k.tell(why.Of(whole.Objects), "ns", name)
			if there != found || found && render(t, part) != render(t, all) {
				t.Errorf("%s/%s: found %v\n%s\nand of all objects: %v\n%s", k.name, name, found, render(t, part), there,
					render(t, all))
			}
		}
	}
}

func render(t *testing.T, c chain.Chain) string {
	t.Helper()
	var b strings.Builder
	if len(c.Links) == 0 {
		return ""
	}
	if err := chain.Render(&b, c, nil); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestSpaceThatIsNotThere: of an object in a namespace that does not exist, the
// namespace is missed; who may not read namespaces is told of the object.
func TestSpaceThatIsNotThere(t *testing.T) {
	k, err := kindOf("pvc")
	if err != nil {
		t.Fatal(err)
	}
	client := town()
	for ns, want := range map[string]string{
		"nosuch": "namespace nosuch does not exist; to list all: volplane get ns",
		"ns":     "pvc/x does not exist in namespace ns; to list all namespaces: volplane get pvc -A",
	} {
		if err := notFoundError(t.Context(), client, k, ns, "x"); err == nil || err.Error() != want {
			t.Errorf("%s: %v", ns, err)
		}
	}
	client.PrependReactor("get", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "", nil)
	})
	if err := requireNamespace(t.Context(), client, "nosuch"); err != nil {
		t.Error(err)
	}
}

func TestKindsGoByTheirNamesOfKubectl(t *testing.T) {
	for word, want := range map[string]string{
		"sc": "storageclass", "storageclasses.storage.k8s.io": "storageclass", "StorageClass": "storageclass",
		"va":                                 "volumeattachment",
		"volumeattachment.v1.storage.k8s.io": "volumeattachment", "ns": "namespace", "no": "node", "po": "pod",
		"vs": "volumesnapshot", "pvc": "pvc",
	} {
		if k, err := kindOf(word); err != nil || k.name != want {
			t.Errorf("%s is %q, %v", word, k.name, err)
		}
	}
	for word, want := range map[string]string{
		"podd": "did you mean pod?", "storageclas": "did you mean storageclass?",
		"pvc.storage.k8s.io": "cannot explain",
	} {
		if _, err := kindOf(word); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", word, err)
		}
	}
}
