package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/golden"
)

// TestOfFailure: what claims are told about the node of their Pods.
func TestOfFailure(t *testing.T) {
	node := func(ready corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{}
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: ready},
		}
		return n
	}
	terminated := node(corev1.ConditionTrue)
	terminated.Status.Phase = corev1.NodeTerminated
	used := func(name string, pods ...string) Used {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		return Used{Claim: c, Pods: pods}
	}
	claims := []Used{used("a", "p", "q"), used("b", "p")}
	var out strings.Builder
	for _, c := range []struct {
		argues string
		facts  NodeFacts
	}{
		{"it is ready", NodeFacts{Node: node(corev1.ConditionTrue)}},
		{"it has said nothing yet", NodeFacts{Node: &corev1.Node{}}},
		{"it is not ready", NodeFacts{Node: node(corev1.ConditionFalse)}},
		{"it is silent", NodeFacts{Node: node(corev1.ConditionUnknown), Silent: failedAfter - time.Second}},
		{"it is silent for too long", NodeFacts{Node: node(corev1.ConditionUnknown), Silent: failedAfter}},
		{"it is silent for too long, without claims", NodeFacts{Node: node(corev1.ConditionUnknown), Silent: failedAfter}},
		{"it is still silent", NodeFacts{Node: node(corev1.ConditionUnknown), Failed: true}},
		{"it is gone", NodeFacts{}},
		{"it is terminated", NodeFacts{Node: terminated}},
		{"it is ready again", NodeFacts{Node: node(corev1.ConditionTrue), Failed: true}},
	} {
		c.facts.Name = "n1"
		if !strings.HasSuffix(c.argues, "without claims") {
			c.facts.Claims = claims
		}
		p := OfFailure(c.facts)
		fmt.Fprintf(&out, "# %s\nfailed %v, wait %s\n", c.argues, p.Failed, p.Wait)
		for _, n := range p.Notices {
			fmt.Fprintf(&out, "  %s %s: %s -> %s\n", n.Claim.Name, n.Because.Reason, n.Because.Message, n.Because.Next)
		}
		out.WriteString("\n")
	}
	golden.Equal(t, "testdata/failures.txt", out.String())
}
