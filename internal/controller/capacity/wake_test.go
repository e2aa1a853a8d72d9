package capacity

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"volplane.dev/volplane/internal/volume"
)

// event is a change, and the keys that it queues.
type event struct {
	resource schema.GroupVersionResource
	// goes names the deleted object, and is is the new state of an object.
	goes string
	is   runtime.Object
	want []string
}

// play has an event happen.
func (b *bench) play(e event) {
	b.t.Helper()
	tracker, namespace := b.client.Tracker(), ""
	if m, ok := e.is.(metav1.Object); ok {
		namespace = m.GetNamespace()
	}
	var err error
	switch {
	case e.goes != "":
		err = tracker.Delete(e.resource, "", e.goes)
	case tracker.Update(e.resource, e.is, namespace) != nil:
		err = tracker.Add(e.is)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.wakes(e.want...)
}

// begins has the nodes and classes come, one after the other.
func (b *bench) begins(classes ...*storagev1.StorageClass) {
	b.t.Helper()
	nodes, csiNodes := corev1.SchemeGroupVersion.WithResource("nodes"),
		storagev1.SchemeGroupVersion.WithResource("csinodes")
	for _, zone := range []string{"a", "b"} {
		n, csi := node("n-"+zone, zone)
		b.play(event{csiNodes, "", csi, []string{"driver/" + driverName}})
		b.play(event{nodes, "", n, []string{"driver/" + driverName}})
	}
	for _, c := range classes {
		b.play(event{storagev1.SchemeGroupVersion.WithResource("storageclasses"), "", c, []string{"driver/" + driverName}})
	}
}

func pv(size string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	v.Spec.StorageClassName, v.Spec.Capacity = "fast",
		corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h"}
	for _, f := range change {
		f(v)
	}
	return v
}

// inB is within reach of zone b only.
func inB(v *corev1.PersistentVolume) {
	in := corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{in}}},
	}}
}

func selected(node string) *corev1.PersistentVolumeClaim {
	fast := "fast"
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", Annotations: map[string]string{}},
	}
	if c.Spec.StorageClassName = &fast; node != "" {
		c.Annotations[volume.AnnSelectedNode] = node
	}
	return c
}

// TestWhoIsAsked: a change that affects the capacity, or what to ask for, queues exactly the items that it affects.
func TestWhoIsAsked(t *testing.T) {
	core, store := corev1.SchemeGroupVersion, storagev1.SchemeGroupVersion
	nodes, csiNodes, classes := core.WithResource("nodes"), store.WithResource("csinodes"),
		store.WithResource("storageclasses")
	volumes, claims, objects := core.WithResource("persistentvolumes"), core.WithResource("persistentvolumeclaims"),
		store.WithResource("csistoragecapacities")
	it, a, b := "driver/"+driverName, item("fast", "a").String(), item("fast", "b").String()
	moved, csi := node("n-a", "c")
	same, _ := node("n-a", "a")
	same.Annotations = map[string]string{"a": "b"}
	lone, _ := node("lone", "a")
	other := csi.DeepCopy()
	other.Spec.Drivers[0].Name = "other.example"
	labelled := csi.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	told, richer, anothers := object("fast", "a", "1Gi", ""), object("fast", "a", "2Gi", ""),
		object("fast", "a", "2Gi", "")
	anothers.Labels[volume.LabelDriver] = "other.example"
	for name, events := range map[string][]event{
		"a node moves":          {{nodes, "", moved, []string{it}}},
		"a node is as it was":   {{nodes, "", same, nil}},
		"a node goes":           {{nodes, "n-a", nil, []string{it}}},
		"a node without driver": {{nodes, "", lone, nil}},
		"a driver leaves a node": {
			{csiNodes, "", labelled, nil},
			{csiNodes, "", other, []string{it, "driver/other.example"}},
			{csiNodes, "n-a", nil, []string{"driver/other.example"}},
		},
		"a class comes and goes": {{classes, "", late("slow"), []string{it}}, {classes, "slow", nil, []string{it}}},
		"an object": {
			{objects, "", told, []string{it}},
			{objects, "", richer, nil},
			{objects, "", anothers, []string{it, "driver/other.example", a}},
		},
		"a volume comes, grows and goes": {
			{volumes, "", pv("1Gi"), []string{a, b}},
			{volumes, "", pv("1Gi", inB), nil},
			{volumes, "", pv("2Gi", inB), []string{b}},
			{volumes, "pv", nil, []string{b}},
		},
		"a volume of another class": {
			{volumes, "", pv("1Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "slow" }), nil},
		},
		"a volume of another driver": {
			{volumes, "", pv("1Gi", func(v *corev1.PersistentVolume) { v.Spec.CSI.Driver = "other.example" }), nil},
		},
		"a volume of no driver": {{volumes, "", pv("1Gi", func(v *corev1.PersistentVolume) { v.Spec.CSI = nil }), nil}},
		"a claim loses its node": {{claims, "", selected("n-a"), nil}, {
			claims, "", selected("n-b"), nil,
		}, {claims, "", selected(""), []string{a, b}}, {claims, "", selected("n-a"), nil}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newBench(t, nil)
			x.begins(late("fast"))
			x.works(theDriver())
			x.wakes(a, b)
			for _, e := range events {
				x.play(e)
			}
			x.idle()
		})
	}
}

// TestOnlyAClaimThatLosesItsNode: of all changes of claims, only the loss of a selected node queues the class.
func TestOnlyAClaimThatLosesItsNode(t *testing.T) {
	t.Parallel()
	claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	x := newBench(t, nil)
	x.begins(late("fast"), late("slow"))
	x.works(theDriver())
	x.wakes(item("fast", "a").String(), item("fast", "b").String(), item("slow", "a").String(), item("slow", "b").String())
	labelled := selected("")
	labelled.Labels = map[string]string{"a": "b"}
	for _, c := range []*corev1.PersistentVolumeClaim{selected(""), labelled, selected("n-a"), selected("n-b")} {
		x.play(event{claims, "", c, nil})
	}
	if err := x.client.Tracker().Delete(claims, "ns", "c"); err != nil {
		t.Fatal(err)
	}
	// Without new names, the keys that earlier events queued would come first.
	slow, full, free := "slow", selected("n-a"), selected("")
	full.Name, free.Name, full.Spec.StorageClassName, free.Spec.StorageClassName = "other", "other", &slow, &slow
	x.play(event{claims, "", full, nil})
	x.play(event{claims, "", free, []string{item("slow", "a").String(), item("slow", "b").String()}})
}
