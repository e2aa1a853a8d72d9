package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit/clientset"
)

// lists is a small cluster with an object under each index, and some under none.
func lists() cluster.Lists {
	uses := corev1.Volume{
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "a"}},
	}
	brings := corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	csi := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}
	meta := func(ns, name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }
	return cluster.Lists{
		Claims: []*corev1.PersistentVolumeClaim{
			{ObjectMeta: meta("n", "b"), Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("fast")}},
			{ObjectMeta: meta("n", "a"), Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"}},
			{ObjectMeta: meta("m", "a"), Spec: corev1.PersistentVolumeClaimSpec{
				DataSource: &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "b"},
			}},
		},
		Volumes: []*corev1.PersistentVolume{
			{ObjectMeta: meta("", "w"), Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: csi}},
			{ObjectMeta: meta("", "v"), Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: csi, ClaimRef: &corev1.ObjectReference{Namespace: "n", Name: "a"},
			}},
		},
		Classes: []*storagev1.StorageClass{{ObjectMeta: meta("", "fast")}},
		Drivers: []*storagev1.CSIDriver{{ObjectMeta: meta("", "d")}},
		Attachments: []*storagev1.VolumeAttachment{
			{ObjectMeta: meta("", "y"), Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1"}},
			{ObjectMeta: meta("", "x"), Spec: storagev1.VolumeAttachmentSpec{
				NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("v")},
			}},
		},
		Pods: []*corev1.Pod{
			{ObjectMeta: meta("n", "q"), Spec: corev1.PodSpec{NodeName: "n1", Volumes: []corev1.Volume{uses, brings}}},
			{ObjectMeta: meta("n", "p"), Spec: corev1.PodSpec{Volumes: []corev1.Volume{uses}}},
		},
		Nodes: []*corev1.Node{{
			ObjectMeta: meta("", "n1"), Status: corev1.NodeStatus{VolumesInUse: []corev1.UniqueVolumeName{"u", "w"}},
		}, {ObjectMeta: meta("", "n0")}},
		CSINodes: []*storagev1.CSINode{{ObjectMeta: meta("", "n1")}},
	}
}

// TestSnapshotIsTheCache: in lists the same is found as in caches that follow the
// cluster that they are of.
func TestSnapshotIsTheCache(t *testing.T) {
	l := lists()
	client := clientset.New()
	for _, o := range slices.Concat(objects(l.Claims), objects(l.Volumes), objects(l.Classes), objects(l.Drivers),
		objects(l.Attachments), objects(l.Pods), objects(l.Nodes), objects(l.CSINodes)) {
		if err := client.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	caches := NewCaches(client)
	live := cluster.View{
		Claims: caches.Claims(), Volumes: caches.Volumes(), Classes: caches.Classes(), Drivers: caches.CSIDrivers(),
		Attachments: caches.Attachments(), Pods: caches.Pods(), Nodes: caches.Nodes(), CSINodes: caches.CSINodes(),
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := caches.Start(ctx); err != nil {
		t.Fatal(err)
	}
	got, want := looks(l.View()), looks(live)
	if got != want {
		t.Errorf("the lists find\n%s\nthe caches\n%s", got, want)
	}
	for _, found := range []string{
		"n/q of index claim=n/q-own", "n/p n/q of index claim=n/a", "x of index volume=v", "v w of index handle=d^h",
		"m/a of index source=m/b", "n1 of index volume=w",
	} {
		if !strings.Contains(got, found) {
			t.Errorf("nobody finds %q in\n%s", found, got)
		}
	}
}

func objects[T runtime.Object](list []T) []runtime.Object {
	out := make([]runtime.Object, 0, len(list))
	for _, o := range list {
		out = append(out, o)
	}
	return out
}

// looks writes down everything that is found in a View.
func looks(v cluster.View) string {
	return look(v.Claims, cluster.ClaimIndexers()) + look(v.Volumes, cluster.VolumeIndexers()) + look(v.Classes, nil) +
		look(v.Drivers, nil) +
		look(v.Attachments, cluster.AttachmentIndexers()) + look(v.Pods, cluster.PodIndexers()) +
		look(v.Nodes, cluster.NodeIndexers()) + look(v.CSINodes, nil)
}

func look[T Object](in cluster.Objects[T], indexers cluster.Indexers[T]) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%T: %s\n", *new(T), keys(in.List()))
	for _, o := range in.List() {
		if got, ok := in.Get(cluster.Key(o)); !ok || got != o {
			fmt.Fprintf(&b, "%s is not found\n", cluster.Key(o))
		}
		for _, name := range slices.Sorted(maps.Keys(indexers)) {
			for _, value := range indexers[name](o) {
				fmt.Fprintf(&b, "%s of index %s=%s\n", keys(in.By(name, value)), name, value)
			}
		}
	}
	if o, ok := in.Get("nobody"); ok || len(in.By("nothing", "x")) > 0 {
		fmt.Fprintf(&b, "found what is not there: %v\n", o)
	}
	return b.String()
}

func keys[T Object](all []T) string {
	names := make([]string, 0, len(all))
	for _, o := range all {
		names = append(names, cluster.Key(o))
	}
	return strings.Join(names, " ")
}
