package nodelife

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
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
	c := New(controller.Env{Client: client, Caches: caches, Events: kube.NewRecorder(ctx, client, "test"), Log: slog.New(slog.DiscardHandler)}, time.Now)
	if err := caches.Start(ctx); err != nil {
		t.Fatal(err)
	}
	// Of this one the cache has not heard, or hears now.
	if _, err := client.CoreV1().Nodes().Update(ctx, node("back", corev1.ConditionTrue, off), metav1.UpdateOptions{}); err != nil {
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
