package gather

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/gather/gathertest"
)

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

// TestOneObjectIsReadWithFewRequests: of the kinds with many objects, only what concerns
// the object is requested, as far as the API can select it.
func TestOneObjectIsReadWithFewRequests(t *testing.T) {
	const small = "list csidrivers\nlist csinodes\nlist leases  !volplane.dev/intents\nlist nodes\nlist storageclasses\n"
	const bound = `get persistentvolumeclaims in ns c1
get persistentvolumes pv-c1
list events in default involvedObject.kind=PersistentVolume,involvedObject.name=pv-c1,type=Warning
list events in default involvedObject.kind=VolumeAttachment,involvedObject.name=a-c1,type=Warning
list events in ns involvedObject.kind=PersistentVolumeClaim,involvedObject.name=c1,type=Warning
list events in ns involvedObject.kind=Pod,involvedObject.name=pod-c1,type=Warning
list pods in ns
list volumeattachments
`
	for _, c := range []struct{ kind, name, want string }{
		{"pvc", "late", small + `get persistentvolumeclaims in ns late
list configmaps  volplane.dev/intents
list leases  volplane.dev/intents
list events in default involvedObject.kind=StorageClass,involvedObject.name=fast,type=Warning
list events in ns involvedObject.kind=PersistentVolumeClaim,involvedObject.name=late,type=Warning
list pods in ns
`},
		{"pvc", "c1", small + bound},
		{"pv", "pv-c1", small + bound},
	} {
		client := gathertest.Town()
		k, err := KindOf(c.kind)
		if err != nil {
			t.Fatal(err)
		}
		if _, found, err := k.Explain(t.Context(), New(client, Options{}), "ns", c.name); err != nil || !found {
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
		client := gathertest.Town()
		k, err := KindOf(c.kind)
		if err != nil {
			t.Fatal(err)
		}
		if _, found, err := k.Explain(t.Context(), New(client, Options{}), "ns", c.name); err != nil || !found {
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
	whole := New(gathertest.Town(), Options{})
	if err := whole.All(t.Context(), metav1.NamespaceAll); err != nil {
		t.Fatal(err)
	}
	for _, k := range Kinds() {
		for _, name := range []string{
			"late", "data", "pv-data", "pod-data", "c1", "pv-c1", "pod-c1", "a-c1", "n1", "n2",
			"fast", "d.example.com",
		} {
			if slices.Contains([]string{"volumesnapshot", "volumegroupsnapshot", "namespace"}, k.Name) {
				continue // which are not in the whole
			}
			answersAsTheWhole(t, k.Name+"/"+name, New(gathertest.Town(), Options{}), whole, k, name)
		}
	}
}

// answersAsTheWhole fails unless what a part reads of one object is enough for the answer that the whole gives.
func answersAsTheWhole(t *testing.T, about string, part, whole *Facts, k Kind, name string) {
	t.Helper()
	got, found, err := k.Explain(t.Context(), part, "ns", name)
	if err != nil {
		t.Fatal(err)
	}
	want, there := k.Tell(why.Of(whole.Objects), "ns", name)
	if there != found || found && render(t, got) != render(t, want) {
		t.Errorf("%s: found %v\n%s\nand of all objects: %v\n%s", about, found, render(t, got), there, render(t, want))
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

func TestKindsGoByTheirNamesOfKubectl(t *testing.T) {
	for word, want := range map[string]string{
		"sc": "storageclass", "storageclasses.storage.k8s.io": "storageclass", "StorageClass": "storageclass",
		"va":                                 "volumeattachment",
		"volumeattachment.v1.storage.k8s.io": "volumeattachment", "ns": "namespace", "no": "node", "po": "pod",
		"vs": "volumesnapshot", "pvc": "pvc",
	} {
		if k, err := KindOf(word); err != nil || k.Name != want {
			t.Errorf("%s is %q, %v", word, k.Name, err)
		}
	}
	for word, want := range map[string]string{
		"podd": "did you mean pod?", "storageclas": "did you mean storageclass?",
		"pvc.storage.k8s.io": "cannot explain",
	} {
		if _, err := KindOf(word); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", word, err)
		}
	}
}
