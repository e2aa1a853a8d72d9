package nodelife_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/testkit/golden"
)

func TestNode(t *testing.T) {
	var out strings.Builder
	for _, c := range []struct {
		argues string
		ready  corev1.ConditionStatus
		leased bool
		silent time.Duration
	}{
		{"a node with a heartbeat is looked at again when the grace ends", corev1.ConditionTrue, true, 10 * time.Second},
		{"a silent one is marked", corev1.ConditionTrue, true, 40 * time.Second},
		{"once", corev1.ConditionUnknown, true, 50 * time.Second},
		{"who says that it is not ready is believed", corev1.ConditionFalse, true, 40 * time.Second},
		{"who never had a heartbeat has not stopped", corev1.ConditionTrue, false, time.Hour},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: c.ready}}
		p := nodelife.Node(nodelife.Facts{Node: n, Leased: c.leased, Silent: c.silent, Grace: 40 * time.Second})
		fmt.Fprintf(&out, "# %s\nready=%s leased=%v silent=%s\n----\nmark=%v wait=%s\n%s: %s -> %s\n\n", c.argues, c.ready,
			c.leased, c.silent,
			p.Mark, p.Wait, p.Because.Reason, p.Because.Message, p.Because.Next)
	}
	golden.Equal(t, "testdata/nodes.txt", out.String())
}
