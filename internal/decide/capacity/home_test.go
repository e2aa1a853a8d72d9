package capacity

import (
	"fmt"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
)

func owner(name string, controls bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: name, UID: "u", Controller: &controls}
}

// TestHome: where objects are made, and whose they become, whoever made them.
func TestHome(t *testing.T) {
	ours := owner("driver", true)
	ours.UID = "ours"
	home := Home{Namespace: "ns", Owner: &ours}
	item := Item{Class: class("fast"), Segment: zone("a"), Home: home}
	made := func(change ...func(*storagev1.CSIStorageCapacity)) *storagev1.CSIStorageCapacity {
		unowned := Item{Class: class("fast"), Segment: zone("a"), Home: Home{Namespace: "ns"}}
		o := Object(unowned, nil, Answer{Available: 1}).Write
		for _, f := range change {
			f(o)
		}
		return o
	}
	of := func(all ...metav1.OwnerReference) func(*storagev1.CSIStorageCapacity) {
		return func(o *storagev1.CSIStorageCapacity) { o.OwnerReferences = all }
	}
	elsewhere := func(o *storagev1.CSIStorageCapacity) { o.Namespace = "other" }
	var out strings.Builder
	for _, c := range []struct {
		argues string
		item   Item
		now    *storagev1.CSIStorageCapacity
	}{
		{"a new one", item, nil},
		{"one of a process without an owner", item, made()},
		{"one that is ours already", item, made(of(ours))},
		{"a former controller of it goes, another owner stays", item, made(of(owner("former", true), owner("x", false)))},
		{"an object cannot have an owner in another namespace", item, made(elsewhere)},
		{
			"without an owner nobody's is taken away",
			Item{Class: item.Class, Segment: item.Segment},
			made(of(owner("x", true))),
		},
	} {
		w := Object(c.item, c.now, Answer{Available: 1}).Write
		if w == nil {
			w = &storagev1.CSIStorageCapacity{}
			w.Name = "none"
		}
		fmt.Fprintf(&out, "# %s\nwrite %s/%s", c.argues, w.Namespace, w.Name)
		for _, r := range w.OwnerReferences {
			fmt.Fprintf(&out, ", of %s %s %s controller=%v", r.Kind, r.Name, r.UID, ptr.Deref(r.Controller, false))
		}
		out.WriteString("\n\n")
	}
	golden.Equal(t, "testdata/home.txt", out.String())
}

// TestControllerOf: of several owners one is the controller.
func TestControllerOf(t *testing.T) {
	o := &metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{owner("x", false)}}
	if got := ControllerOf(o); got != nil {
		t.Errorf("no controller: %v", got)
	}
	o.OwnerReferences = append(o.OwnerReferences, owner("y", true))
	o.OwnerReferences[1].BlockOwnerDeletion = ptr.To(true)
	if got, want := ControllerOf(o), owner("y", true); !equality.Semantic.DeepEqual(got, &want) {
		t.Errorf("controller %v", got)
	}
}

// TestElsewhere: a process leaves the objects of segments that others query, and a guest those of segments without
// nodes.
func TestElsewhere(t *testing.T) {
	for _, c := range []struct {
		argues    string
		object    *storagev1.CSIStorageCapacity
		elsewhere []topology.Segment
		guest     bool
		deletes   int
	}{
		{"a segment without nodes", object(zone("b")), nil, false, 1},
		{"one that another process queries", object(zone("b")), []topology.Segment{zone("b")}, false, 0},
		{"one that it does not", object(zone("b")), []topology.Segment{zone("c")}, false, 1},
		{"a segment without nodes, for a guest", object(zone("b")), nil, true, 0},
		{"a class that does not exist, for a guest", object(zone("a"), of("gone")), nil, true, 1},
	} {
		f := facts(has(c.object))
		f.Elsewhere, f.Guest = c.elsewhere, c.guest
		if got := len(Driver(f).Delete); got != c.deletes {
			t.Errorf("%s: %d objects are deleted", c.argues, got)
		}
	}
}

// TestLabelOnNode: the label is upstream's, also for names that are too long for one. Objects of other nodes are left
// alone.
func TestLabelOnNode(t *testing.T) {
	n := func(length int) string { return strings.Repeat("n", length) }
	for node, want := range map[string]string{
		"":    "external-provisioner",
		"n1":  "external-provisioner-n1",
		n(42): "external-provisioner-" + n(42),
		n(43): "external-p-53f40b57-" + n(43),
		n(52): "e-53f40b57-" + n(52),
		n(53): "external-provisioner-698d23b8",
		n(80): "external-provisioner-1985d2ee",
	} {
		if got := (Home{Node: node}).managedBy(); got != want {
			t.Errorf("on node %s: %s, want %s", node, got, want)
		}
	}
	here, there := Home{Node: "n1"}, Home{Node: "n2"}
	theirs := Object(Item{Class: class("fast"), Segment: zone("b"), Home: there}, nil, Answer{}).Write
	f := facts(has(theirs))
	if f.Home = here; len(Driver(f).Delete) > 0 {
		t.Error("the object of another node is deleted")
	}
	if f.Home = there; len(Driver(f).Delete) != 1 {
		t.Error("an object of a segment that is gone stays")
	}
}
