package hosts

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// heartbeats is the number of heartbeats with another clock's time. Together they take longer than the
// 40 seconds after which a silent node is not ready any more.
const heartbeats = 9

// TestClocksDiffer: the clock of a host is an hour behind, then an hour ahead. The node is ready as long
// as it sends heartbeats, and not ready when it stops. Its volume is touched in neither case.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "vpk")
	volume := w.createClaim("data")
	w.createPod("k", "data", "vpk")
	w.waitForMount("k")
	w.waitForHolders(volume, "vpk")
	// A process cannot have a clock of its own, so the test sends the heartbeats in the agent's place.
	w.hosts["vpk"].agent.Kill()
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	for range heartbeats {
		w.renewNodeLease("vpk", -time.Hour)
		<-ticker.C
		if ready, message := w.nodeReady("vpk"); !ready {
			t.Fatalf("a node whose clock is an hour behind is not ready: %s", message)
		}
	}
	w.renewNodeLease("vpk", time.Hour)
	w.eventually("vpk is silent", func() (string, error) {
		if ready, message := w.nodeReady("vpk"); ready {
			return "ready: " + message, nil
		}
		return "", nil
	})
	w.waitForHolders(volume, "vpk")
	w.must(w.hosts["vpk"].agent.Restart())
	w.eventually("vpk is ready again", func() (string, error) {
		if ready, message := w.nodeReady("vpk"); !ready {
			return message, nil
		}
		return "", nil
	})
	w.waitForMount("k")
	w.deletePod("k", false)
	w.waitForDeletion("k")
	w.waitForUnmount("vpk")
	w.checkEnd(volume)
}

// renewNodeLease sends a heartbeat of a host whose clock is off by this much.
func (w *world) renewNodeLease(name string, off time.Duration) {
	w.t.Helper()
	leases := w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	// The update conflicts with the agent's own last heartbeat when both come at the same time.
	w.eventually("heartbeat of "+name, func() (string, error) {
		lease, err := leases.Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now().Add(off)))
		_, err = leases.Update(w.ctx, lease, metav1.UpdateOptions{})
		return "", err
	})
}

// nodeReady returns whether a node is ready, and the message of the condition.
func (w *world) nodeReady(name string) (bool, string) {
	w.t.Helper()
	n, err := w.client.CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, "the node has no condition Ready"
}
