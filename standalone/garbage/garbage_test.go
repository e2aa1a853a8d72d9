package garbage_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/standalone/garbage"
	"volplane.dev/volplane/standalone/standalonetest"
)

// collecting runs an API server and the collector, until the test ends.
func collecting(t *testing.T) kubernetes.Interface {
	t.Helper()
	s := standalonetest.StartCollecting(t, garbage.RBAC()...)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- garbage.Run(ctx, s.ClientConfig(garbage.User)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return standalonetest.Client(t, s, "")
}

// TestNodeTakesItsCSINode.
func TestNodeTakesItsCSINode(t *testing.T) {
	c, ctx := collecting(t), t.Context()
	node, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		metav1.CreateOptions{})
	must(t, err)
	_, err = c.StorageV1().CSINodes().Create(ctx,
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: "n1", UID: node.UID},
		}}}, metav1.CreateOptions{})
	must(t, err)
	must(t, c.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}))
	eventually(t, "the CSINode goes", func() bool {
		_, err := c.StorageV1().CSINodes().Get(ctx, "n1", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// TestCascade: kubectl delete --cascade and the dependents of the deleted object.
func TestCascade(t *testing.T) {
	c, ctx := collecting(t), t.Context()
	for policy, want := range map[metav1.DeletionPropagation]struct {
		stays, waits bool
	}{
		metav1.DeletePropagationBackground: {}, metav1.DeletePropagationForeground: {waits: true},
		metav1.DeletePropagationOrphan: {stays: true},
	} {
		t.Run(string(policy), func(t *testing.T) {
			maps := c.CoreV1().ConfigMaps("default")
			owner, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "owner-"}},
				metav1.CreateOptions{})
			must(t, err)
			child, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				// Another finalizer holds it for a while.
				GenerateName: "child-", Finalizers: []string{"example.com/held"},
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: ptr.To(true)},
				},
			}}, metav1.CreateOptions{})
			must(t, err)
			get := func(name string) *corev1.ConfigMap {
				o, err := maps.Get(ctx, name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				must(t, err)
				return o
			}
			must(t, maps.Delete(ctx, owner.Name, metav1.DeleteOptions{PropagationPolicy: &policy}))
			if want.stays {
				eventually(t, "the owner goes, its child has none",
					func() bool { return get(owner.Name) == nil && len(get(child.Name).OwnerReferences) == 0 })
				if get(child.Name).DeletionTimestamp != nil {
					t.Error("an orphan is deleted")
				}
				return
			}
			eventually(t, "the child is deleted", func() bool { return get(child.Name).DeletionTimestamp != nil })
			if waits := get(owner.Name) != nil; waits != want.waits {
				t.Errorf("the owner waits for its child: %v, want %v", waits, want.waits)
			}
			child = get(child.Name)
			child.Finalizers = nil
			_, err = maps.Update(ctx, child, metav1.UpdateOptions{})
			must(t, err)
			eventually(t, "both are gone", func() bool { return get(child.Name) == nil && get(owner.Name) == nil })
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	testkit.Eventually(t, time.Minute, testkit.Unless(what, done))
}
