package nodelife

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube"
)

// TestOrphansGo: the Pods of a node that is missing stay for the grace, counted
// from when it was missed here, and go then; those of other nodes stay.
func TestOrphansGo(t *testing.T) {
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node},
		}
	}
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, pod("here", "n1"),
		pod("there", "n2"))
	caches := kube.NewCaches(client)
	ctx := t.Context()
	var moved atomic.Int64
	c := New(controller.Env{
		Client: client, Caches: caches, Events: kube.NewRecorder(ctx, client, "test"), Log: slog.New(slog.DiscardHandler),
	},
		func() time.Time { return time.Unix(1e9, moved.Load()) })
	if err := caches.Start(ctx); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		node  string
		after time.Duration
		wait  time.Duration
	}{
		{"n1", 0, 0}, {"n2", 0, grace}, {"n2", grace - time.Second, time.Second}, {"n2", grace, 0}, {"n1", 2 * grace, 0},
	} {
		moved.Store(int64(step.after))
		result, err := c.Reconcile(ctx, controller.Key{Kind: kindGone, Name: step.node})
		if err != nil || result.After != step.wait {
			t.Errorf("%s after %s: looks again in %s, want %s; %v", step.node, step.after, result.After, step.wait, err)
		}
		_, err = client.CoreV1().Pods("default").Get(ctx, "there", metav1.GetOptions{})
		if gone := apierrors.IsNotFound(err); gone != (step.after >= grace) {
			t.Errorf("%s after %s: pod is gone: %v", step.node, step.after, gone)
		}
	}
	if _, err := client.CoreV1().Pods("default").Get(ctx, "here", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
