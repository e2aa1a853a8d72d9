package kube

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

func TestCacheIndexesAndOwnWrites(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: "c", UID: "u", ResourceVersion: "5", ManagedFields: []metav1.ManagedFieldsEntry{{}},
		},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
	}
	caches := NewCaches(clientset.New(claim))
	claims := caches.Claims()
	if caches.Claims() != claims {
		t.Fatal("a second call made a second cache")
	}
	if err := caches.Start(ctx); err != nil {
		t.Fatal(err)
	}
	got, ok := claims.Get("n/c")
	if !ok || got.ManagedFields != nil {
		t.Fatalf("got %v, %v; want the claim without managed fields", got, ok)
	}
	if by := claims.By(cluster.ClaimsByVolume, "pv"); len(by) != 1 {
		t.Errorf("by volume: %d objects, want 1", len(by))
	}
	if _, ok := claims.ByUID("u"); !ok {
		t.Error("not found by uid")
	}
	newer := got.DeepCopy()
	newer.ResourceVersion, newer.Spec.VolumeName = "6", "pv2"
	claims.Wrote(newer)
	if got, _ := claims.Get("n/c"); got.Spec.VolumeName != "pv2" {
		t.Error("an own write is not seen")
	}
	older := got.DeepCopy()
	older.ResourceVersion, older.Spec.VolumeName = "4", "pv0"
	claims.Wrote(older)
	if got, _ := claims.Get("n/c"); got.Spec.VolumeName == "pv0" {
		t.Error("an older write hides a newer state")
	}
}

// TestUnboundByClass: the older annotation takes precedence over the field, and may say
// that there is no class.
func TestUnboundByClass(t *testing.T) {
	claim := func(annotations map[string]string, class *string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Annotations: annotations},
			Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: class},
		}
	}
	beta := func(class string) map[string]string { return map[string]string{volume.AnnBetaStorageClass: class} }
	for _, c := range []struct {
		claim *corev1.PersistentVolumeClaim
		want  string
	}{
		{claim(nil, nil), ""},
		{claim(nil, ptr.To("fast")), "fast"},
		{claim(beta("old"), ptr.To("fast")), "old"},
		{claim(beta("old"), nil), "old"},
		{claim(beta(""), ptr.To("fast")), ""},
	} {
		got := claimIndexers()[cluster.UnboundByClass](c.claim)
		if len(got) != 1 || got[0] != c.want {
			t.Errorf("%v and %v: found under %q, want %q", c.claim.Annotations, c.claim.Spec.StorageClassName, got, c.want)
		}
	}
}

// TestBorrowedCache: who borrows a cache finds what its owner finds, hears of what was there before and of each change
// until it ends, and asks the API server for nothing.
func TestBorrowedCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := func(name string) *corev1.PersistentVolumeClaim {
			return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)}}
		}
		client, refuses := clientset.New(claim("a")), clientset.New()
		refuses.PrependReactor("*", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
			t.Errorf("the API server was asked to %s %s", a.GetVerb(), a.GetResource().Resource)
			return true, nil, errors.New("refused")
		})
		owner, borrower := NewCaches(client).Lendable(), NewCaches(refuses)
		if err := owner.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		borrower.Borrow(owner)
		var heard []string
		borrower.Claims().Watch(func(_, after *corev1.PersistentVolumeClaim) { heard = append(heard, after.Name) })
		ctx, end := context.WithCancel(t.Context())
		if err := borrower.Start(ctx); err != nil {
			t.Fatal(err)
		}
		create := func(name string) {
			_, err := client.CoreV1().PersistentVolumeClaims("n").Create(t.Context(), claim(name), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if _, found := borrower.Claims().Get("n/" + name); !found {
				t.Errorf("claim %s is not found", name)
			}
		}
		create("b")
		end()
		synctest.Wait()
		create("c")
		if want := []string{"a", "b"}; !slices.Equal(heard, want) {
			t.Errorf("heard of %v, want %v", heard, want)
		}
		if n := len(owner.Claims().store.listeners); n != 0 {
			t.Errorf("%d listeners are left", n)
		}
	})
}
