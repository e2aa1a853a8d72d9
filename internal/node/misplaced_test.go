package node

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/topology"
)

// usableIn has the nodes of a zone use a volume.
func usableIn(zone string) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) {
		pv.Spec.NodeAffinity = topology.Affinity([]topology.Segment{{"zone": zone}})
	}
}

// TestAffinityChanges: a Pod keeps its volume when the volume's nodeAffinity does not name the Pod's node any more. No
// other Pod gets it there until it names the node again, or the node is where it says.
func TestAffinityChanges(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	inZone := func(zone string) {
		body := fmt.Sprintf(`{"metadata":{"labels":{"zone":%q}}}`, zone)
		w.must(w.client.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, []byte(body),
			metav1.PatchOptions{}))
		eventually(t, func() string {
			if n, ok := w.agent.Caches.Nodes().Get("n1"); !ok || n.Labels["zone"] != zone {
				return "the agent has not read the node's zone " + zone
			}
			return ""
		})
	}
	moved := func(zone string) {
		pv, err := w.client.CoreV1().PersistentVolumes().Get(t.Context(), "pv-a", metav1.GetOptions{})
		w.must(pv, err)
		usableIn(zone)(pv)
		w.must(w.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}))
		eventually(t, func() string {
			got, ok := w.agent.Caches.Volumes().Get("pv-a")
			if !ok || !equality.Semantic.DeepEqual(got.Spec.NodeAffinity, pv.Spec.NodeAffinity) {
				return "the agent has not read that the volume is for zone " + zone
			}
			return ""
		})
	}
	inZone("here")
	w.addVolume(driverName, "a", usableIn("here"))
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")

	moved("there")
	before := d.history()
	w.pod("late", "a")
	w.awaitCondition("late", corev1.ConditionFalse, "FailedMount: volume pv-a: its nodeAffinity excludes node n1")
	w.heard("Pod", "late", "FailedMount", "volume pv-a: its nodeAffinity excludes node n1", "user")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	if after := d.history(); after != before {
		t.Errorf("calls for a Pod that may not have the volume: %s, before %s", after, before)
	}

	inZone("there")
	w.awaitCondition("late", corev1.ConditionTrue, "v-a=")
	inZone("here")
	w.pod("later", "a")
	w.awaitCondition("later", corev1.ConditionFalse, "its nodeAffinity excludes node n1")
	moved("here")
	w.awaitCondition("later", corev1.ConditionTrue, "v-a=")
	w.endPods("p", "late", "later")
}
