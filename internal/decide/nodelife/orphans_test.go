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

func TestOrphans(t *testing.T) {
	pods := []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "web"}}}
	var out strings.Builder
	for _, c := range []struct {
		argues  string
		node    *corev1.Node
		pods    []*corev1.Pod
		missing time.Duration
	}{
		{"the Pods of a node that is there are its agent's business", &corev1.Node{}, pods, 0},
		{"a node without Pods leaves nothing behind", nil, nil, time.Hour},
		{"a living agent gets time to make its node again", nil, pods, 10 * time.Second},
		{"then nobody is waited for any more", nil, pods, 40 * time.Second},
	} {
		p := nodelife.Orphans(nodelife.OrphanFacts{
			Name: "n1", Node: c.node, Pods: c.pods, Missing: c.missing, Grace: 40 * time.Second,
		})
		fmt.Fprintf(&out, "# %s\nnode=%v pods=%d missing=%s\n----\ndelete=%d wait=%s\n%s: %s -> %s\n\n", c.argues,
			c.node != nil, len(c.pods), c.missing,
			len(p.Delete), p.Wait, p.Because.Reason, p.Because.Message, p.Because.Next)
	}
	golden.Equal(t, "testdata/orphans.txt", out.String())
}
