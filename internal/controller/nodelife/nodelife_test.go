package nodelife

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/kube"
)

// TestSilence: a node is marked when its Lease has not changed for the grace,
// counted from when this controller saw it, whatever the Lease says of the time.
func TestSilence(t *testing.T) {
	for name, stamp := range map[string]time.Time{
		"long ago": time.Unix(0, 0), "an hour behind": begin().Add(-time.Hour), "an hour ahead": begin().Add(time.Hour),
	} {
		t.Run(name, func(t *testing.T) { silence(t, stamp) })
	}
}

// begin is when the controller starts, by its own clock.
func begin() time.Time { return time.Unix(1e9, 0) }

func silence(t *testing.T, stamp time.Time) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	old := metav1.NewMicroTime(stamp)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Namespace: corev1.NamespaceNodeLease, ResourceVersion: "1"},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &old},
	}
	client := fake.NewClientset(node, lease)
	caches := kube.NewCaches(client)
	ctx := t.Context()
	var moved atomic.Int64
	c := New(controller.Env{
		Client: client, Caches: caches, Events: kube.NewRecorder(ctx, client, "test"), Log: slog.New(slog.DiscardHandler),
	},
		func() time.Time { return begin().Add(time.Duration(moved.Load())) })
	if err := caches.Start(ctx); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		after time.Duration
		wait  time.Duration
		ready bool
	}{
		{0, grace, true}, // the start gives it the whole grace
		{grace - time.Second, time.Second, true},
		{grace, 0, false},
		{2 * grace, 0, false},
	} {
		moved.Store(int64(step.after))
		result, err := c.Reconcile(ctx, controller.Key{Kind: "node", Name: "n1"})
		if err != nil {
			t.Fatal(err)
		}
		now, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if result.After != step.wait || nodelife.Ready(now) != step.ready {
			t.Errorf("after %s: looks again in %s, ready %v; want %s, %v", step.after, result.After, nodelife.Ready(now),
				step.wait, step.ready)
		}
	}
}
