package nodelife_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/nodelife"
	"volplane.dev/volplane/internal/kube/kubetest"
)

const (
	grace = 40 * time.Second
	soon  = time.Second
)

// world is one in which the controller works.
type world struct{ *kubetest.World }

func inWorld(t *testing.T, play func(*world), objects ...runtime.Object) {
	t.Helper()
	kubetest.InWorld(t, func(env controller.Env) *controller.Controller { return nodelife.New(env, time.Now) },
		func(w *kubetest.World) { play(&world{w}) }, objects...)
}

// beats has the agent of a node renew its Lease.
func (w *world) beats(node string) {
	w.Helper()
	leases := w.Users.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	kubetest.Change(w.Users, leases, node, func(l *coordinationv1.Lease) {
		l.Labels = map[string]string{"at": fmt.Sprint(time.Now().Unix())}
	})
}

// left compares the Pods that are there with what is wanted.
func (w *world) left(want ...string) {
	w.Helper()
	list, err := w.Users.CoreV1().Pods("").List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	got := []string{}
	for _, p := range list.Items {
		got = append(got, p.Namespace+"/"+p.Name)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		w.Errorf("pods (-want +got):\n%s", diff)
	}
}

// is compares a whole node with what is wanted.
func (w *world) is(want *corev1.Node) {
	w.Helper()
	w.Users.Is(want)
}

// heard compares all events so far with what is wanted.
func (w *world) heard(want ...string) {
	w.Helper()
	w.Heard(func(name string) string { return name }, want...)
}

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": "b"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: "example.org/Foreign", Status: corev1.ConditionTrue}, {
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
	}}
	n.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/d^h"}
	for _, f := range change {
		f(n)
	}
	return n
}

func ready(s corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Conditions[len(n.Status.Conditions)-1].Status = s }
}

func off(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
}

func pod(ns, name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.PodSpec{NodeName: node}}
}
