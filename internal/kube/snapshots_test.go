package kube_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestSnapshots: custom resources are cached, watched and written like all other kinds.
func TestSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		old := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "old", Finalizers: []string{"example.org/theirs"},
		}}
		old.Spec.Source.PersistentVolumeClaimName = ptr.To("data")
		fast := snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}}
		api := kubetest.NewAPI(t, old, &cluster.VolumeSnapshotClass{VolumeSnapshotClass: fast})
		client := kubetest.Customized(api.Clientset)
		caches := kube.NewCaches(client)
		snapshots, contents, classes := caches.WriteSnapshots(client), caches.WriteContents(client), caches.SnapshotClasses()
		heard := map[string]bool{}
		snapshots.Watch(func(_, o *snapshotv1.VolumeSnapshot) {
			if o != nil {
				heard[o.Name] = true
			}
		})
		if err := errors.Join(caches.Start(ctx), caches.WaitForOptional(ctx, []kube.Access{
			{Resource: volume.ResourceSnapshots},
			{Resource: volume.ResourceSnapshotContents},
			{Resource: volume.ResourceSnapshotClasses},
		})); err != nil {
			t.Fatal(err)
		}
		if _, ok := classes.Get("fast"); !ok {
			t.Error("classes are not cached")
		}
		if len(snapshots.By(cluster.SnapshotsByClaim, "ns/data")) != 1 {
			t.Error("what there was is not cached")
		}
		synctest.Wait()
		next := old.DeepCopy()
		next.Name = "new"
		api.Put(next)
		synctest.Wait()
		if _, ok := snapshots.Get("ns/new"); !ok || !heard["new"] || !heard["old"] {
			t.Errorf("what is new is not watched: %v", heard)
		}
		writtenContents(t, contents)
	})
}

// writtenContents creates, creates again and deletes a content.
func writtenContents(t *testing.T, contents kube.Writer[*cluster.VolumeSnapshotContent]) {
	t.Helper()
	one := &cluster.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "c", Finalizers: []string{"a/b"}}}
	one.Spec.VolumeSnapshotRef.Namespace, one.Spec.VolumeSnapshotRef.Name = "ns", "new"
	got, err := contents.Create(t.Context(), one)
	if err != nil || got.Kind != "VolumeSnapshotContent" {
		t.Fatalf("created %v: %v", got, err)
	}
	again, made, err := contents.Ensure(t.Context(), one)
	if err != nil || made || again.UID != got.UID || len(contents.By(cluster.ContentsBySnapshot, "ns/new")) != 1 {
		t.Errorf("created again: %v, %v, %v", again, made, err)
	}
	if err := contents.Delete(t.Context(), got, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if gone, ok := contents.Get("c"); !ok || gone.DeletionTimestamp == nil {
		t.Errorf("deleted: %v", gone)
	}
}

// TestChange: a change has only what differs, all digits of it, and the version that it is made of.
func TestChange(t *testing.T) {
	before := &cluster.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{
		Name: "c", UID: "u", Annotations: map[string]string{"a": "1", "b": "2"}, Finalizers: []string{"x/y"},
	}}
	before.Status = &snapshotv1.VolumeSnapshotContentStatus{
		CreationTime: ptr.To[int64](1), Error: &snapshotv1.VolumeSnapshotError{Message: ptr.To("old")},
	}
	api := kubetest.NewAPI(t, before)
	client := kubetest.Customized(api.Clientset)
	contents := kube.NewCaches(client).WriteContents(client)
	before.ResourceVersion = "1"
	after := before.DeepCopy()
	delete(after.Annotations, "a")
	after.Annotations["c"] = "3"
	after.Status = &snapshotv1.VolumeSnapshotContentStatus{
		CreationTime: ptr.To[int64](1700000000123456789), SnapshotHandle: ptr.To("h"),
	}
	got, err := contents.Change(t.Context(), before, after)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"metadata":{"annotations":{"a":null,"c":"3"},"resourceVersion":"1"},"status":{"creationTime":` +
		`1700000000123456789,"error":null,"snapshotHandle":"h"}}`
	if patch := patchOf(t, api.Clientset); patch != want {
		t.Errorf("patch %s, want %s", patch, want)
	}
	if *got.Status.CreationTime != 1700000000123456789 || got.Annotations["b"] != "2" || got.Status.Error != nil {
		t.Errorf("got %v", got)
	}
	if _, err := contents.Change(t.Context(), before, after, "status"); !apierrors.IsConflict(err) {
		t.Errorf("a change of an old version: %v", err)
	}
}

// patchOf returns the last patch.
func patchOf(t *testing.T, c *fake.Clientset) string {
	t.Helper()
	var out strings.Builder
	for _, a := range c.Actions() {
		if p, ok := a.(clienttesting.PatchAction); ok {
			out.Reset()
			out.Write(p.GetPatch())
		}
	}
	return out.String()
}
