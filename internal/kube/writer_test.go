package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit/clientset"
)

// TestBind: a Pod is read on the node that it was given, where it is looked for by
// node, and whatever older news of it comes; and deleting it adds to that.
func TestBind(t *testing.T) {
	client := clientset.New()
	bound := errors.New("not now")
	client.PrependReactor("create", "pods",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, bound })
	client.PrependReactor("delete", "pods",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
	pods := NewCaches(client).WritePods(client)
	f := reflectorStore[*corev1.Pod]{pods.store}
	on := func(want string) {
		t.Helper()
		var got []string
		for _, node := range []string{"", "n1"} {
			for _, p := range pods.By(cluster.PodsByNode, node) {
				got = append(got, "on "+node+":", versionOf(p))
				if p.DeletionTimestamp != nil {
					got = append(got, "going")
				}
			}
		}
		if said := strings.Join(got, " "); said != want {
			t.Errorf("found %q, want %q", said, want)
		}
	}
	_ = f.Add(say("a 1"))
	if err := Bind(t.Context(), pods, say("a 1"), "n1"); !errors.Is(err, bound) {
		t.Errorf("got %v", err)
	}
	on("on : a1")
	bound = nil
	if err := Bind(t.Context(), pods, say("a 1"), "n1"); err != nil {
		t.Fatal(err)
	}
	on("on n1: a1")
	if err := pods.Delete(t.Context(), say("a 1"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	on("on n1: a1 going")
	_ = f.Update(say("a 2"))
	on("on n1: a2 going")
	_ = f.Update(say("a 3 n1"))
	on("on n1: a3 going")
	_ = f.Delete(say("a 4 n1"))
	on("")
	if len(pods.store.overlays) > 0 {
		t.Errorf("left: %v", pods.store.overlays)
	}
}

// TestWriterSays: an error names the request and the object, and a patch is sent as
// it was given.
func TestWriterSays(t *testing.T) {
	client := clientset.New()
	var patch string
	client.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch = a.GetSubresource() + " " + string(a.(clienttesting.PatchAction).GetPatch())
		return false, nil, nil
	})
	caches, ctx := NewCaches(client), context.Background()
	claims := caches.WriteClaims(client)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "c"}}
	_, updated := claims.Update(ctx, claim)
	_, patched := claims.Patch(ctx, claim, types.MergePatchType, map[string]any{"a": 1}, "status")
	_, odd := claims.Patch(ctx, claim, types.MergePatchType, func() {})
	_, status := claims.UpdateStatus(ctx, claim)
	for _, c := range []struct {
		err  error
		want string
		gone bool
	}{
		{updated, `update claim n/c: persistentvolumeclaims "c" not found`, true},
		{patched, `patch claim n/c: persistentvolumeclaims "c" not found`, true},
		{odd, "patch claim n/c: json: unsupported type: func()", false},
		{status, `update the status of claim n/c: persistentvolumeclaims "c" not found`, true},
		{claims.Delete(ctx, claim, metav1.DeleteOptions{}), "", true},
	} {
		if c.want != "" && (c.err == nil || c.err.Error() != c.want) || c.want == "" && c.err != nil {
			t.Errorf("got %v, want %s", c.err, c.want)
		}
		if forgiven := IgnoreNotFound(c.err) == nil; forgiven != c.gone {
			t.Errorf("%v is forgiven: %v", c.err, forgiven)
		}
	}
	if want := `status {"a":1}`; patch != want {
		t.Errorf("sent %s, want %s", patch, want)
	}
}

// TestEnsureCannotLook: an existing object that may not be read is not reported as a
// refusal of the create.
func TestEnsureCannotLook(t *testing.T) {
	client := clientset.New()
	volumes := NewCaches(client).WriteVolumes(client)
	forbidden := apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "v", nil)
	client.PrependReactor("get", "persistentvolumes",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden })
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	if got, made, err := volumes.Ensure(t.Context(), v); got == nil || !made || err != nil {
		t.Errorf("made %v, %v, %v", got, made, err)
	}
	got, made, err := volumes.Ensure(t.Context(), v)
	if got != nil || made || err == nil || apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "look at volume v: ") {
		t.Errorf("what is there and cannot be looked at is %v, %v, %v", got, made, err)
	}
}

func TestRefusedForGood(t *testing.T) {
	t.Parallel()
	kind, resource := schema.GroupKind{Kind: "Pod"}, schema.GroupResource{Resource: "pods"}
	for err, want := range map[error]bool{
		apierrors.NewInvalid(kind, "p", nil):                            true,
		fmt.Errorf("x: %w", apierrors.NewForbidden(resource, "p", nil)): true,
		apierrors.NewBadRequest("no"):                                   true,
		apierrors.NewNotFound(resource, "p"):                            false,
		apierrors.NewConflict(resource, "p", nil):                       false,
		apierrors.NewTooManyRequests("later", 1):                        false,
		errors.New("connection refused"):                                false,
	} {
		if got := RefusedForGood(err); got != want {
			t.Errorf("%v is refused for good: %v", err, got)
		}
	}
	if RefusedForGood(nil) {
		t.Error("a request that was not refused")
	}
}
