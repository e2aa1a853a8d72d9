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
	golden.Play(t, "testdata/nodes.txt", func(t *testing.T, given string) string {
		var is struct {
			Ready  corev1.ConditionStatus
			Leased bool
			Silent time.Duration
		}
		golden.Read(t, &is, strings.Fields(given))
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is.Ready}}
		p := nodelife.Node(nodelife.Facts{Node: n, Leased: is.Leased, Silent: is.Silent, Grace: 40 * time.Second})
		return fmt.Sprintf("mark=%v wait=%s\n%s: %s -> %s", p.Mark, p.Wait, p.Because.Reason, p.Because.Message,
			p.Because.Next)
	})
}

func TestOrphans(t *testing.T) {
	golden.Play(t, "testdata/orphans.txt", func(t *testing.T, given string) string {
		var there struct {
			Node    bool
			Pods    int
			Missing time.Duration
		}
		golden.Read(t, &there, strings.Fields(given))
		f := nodelife.OrphanFacts{
			Name: "n1", Pods: make([]*corev1.Pod, there.Pods), Missing: there.Missing, Grace: 40 * time.Second,
		}
		if there.Node {
			f.Node = &corev1.Node{}
		}
		p := nodelife.Orphans(f)
		return fmt.Sprintf("delete=%d wait=%s\n%s: %s -> %s", len(p.Delete), p.Wait, p.Because.Reason, p.Because.Message,
			p.Because.Next)
	})
}
