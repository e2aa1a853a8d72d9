package nodelife

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube"
)

// TestOutOfServiceDeletesPods: the Pods of a node that is said to be off go when
// its agent is silent, and the API server is asked last whether it is.
func TestOutOfServiceDeletesPods(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: taints}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		return n
	}
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node},
		}
	}
	off := corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}
	client := fake.NewClientset(
		node("off", corev1.ConditionUnknown, off), pod("a", "off"), pod("b", "off"),
		node("silent", corev1.ConditionUnknown), pod("c", "silent"),
		node("alive", corev1.ConditionTrue, off), pod("d", "alive"),
		node("back", corev1.ConditionUnknown, off), pod("e", "back"),
	)
	caches := kube.NewCaches(client)
	ctx := t.Context()
	c := New(controller.Env{
		Client: client, Caches: caches, Events: kube.NewRecorder(ctx, client, "test"), Log: slog.New(slog.DiscardHandler),
	}, time.Now)
	if err := caches.Start(ctx); err != nil {
		t.Fatal(err)
	}
	// Of this one the cache has not heard, or hears now.
	if _, err := client.CoreV1().Nodes().Update(ctx, node("back", corev1.ConditionTrue, off),
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"off", "silent", "alive", "back", "none"} {
		if _, err := c.Reconcile(ctx, controller.Key{Kind: kindDead, Name: name}); err != nil {
			t.Error(err)
		}
	}
	left, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range left.Items {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	if want := []string{"c", "d", "e"}; !slices.Equal(names, want) {
		t.Errorf("pods %v are left, want %v", names, want)
	}
}

// TestTaintIsHeard: the taint, and what comes to the node or goes there later,
// wakes the controller.
func TestTaintIsHeard(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: "n1"},
		}
	}
	client := fake.NewClientset(node, pod("early"))
	caches := kube.NewCaches(client)
	ctx, cancel := context.WithCancel(t.Context())
	c := New(controller.Env{
		Client: client, Caches: caches, Events: kube.NewRecorder(ctx, client, "test"), Log: slog.New(slog.DiscardHandler),
	}, time.Now)
	if err := caches.Start(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	tainted := node.DeepCopy()
	tainted.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	// A change that is lost between this API's list and its watch is told again.
	gone(t, client, "early", func() {
		tainted.Labels = map[string]string{"turn": time.Now().String()}
		_, err := client.CoreV1().Nodes().Update(ctx, tainted, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	})
	if _, err := client.CoreV1().Pods("default").Create(ctx, pod("late"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, client, "late", func() {})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// gone waits until a Pod is gone, and does something meanwhile.
func gone(t *testing.T, client *fake.Clientset, name string, meanwhile func()) {
	t.Helper()
	deadline, tick := time.After(time.Minute), time.NewTicker(50*time.Millisecond)
	defer tick.Stop()
	for {
		meanwhile()
		if _, err := client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("pod %s stays", name)
		case <-tick.C:
		}
	}
}
