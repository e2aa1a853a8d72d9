package hosts

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// heartbeats is the number of heartbeats with another clock's time. Together they take longer than the 40 seconds after
// which a silent node counts as not ready.
const heartbeats = 9

// TestClocksDiffer: the clock of a host is an hour behind, and that of another one is an hour behind, then an hour
// ahead. A node is ready as long as it sends heartbeats, and not ready when it stops. Its volume is touched in neither
// case.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "vpk", "vpr")
	volumes := map[string]string{}
	for _, name := range []string{"vpk", "vpr"} {
		volumes[name] = w.createClaim("data-" + name)
		w.createPod(name, "data-"+name, name)
		w.waitForMount(name)
		w.waitForHolders(volumes[name], name)
		// A process cannot have a clock of its own, so the test sends the heartbeats in the agent's place.
		w.hosts[name].agent.Kill()
	}
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	for i := range heartbeats {
		w.renewNodeLease("vpk", -time.Hour)
		switch i {
		case 0:
			w.renewNodeLease("vpr", -time.Hour)
		case 1:
			w.renewNodeLease("vpr", time.Hour) // the last one
		}
		<-ticker.C
		w.mustBeReady("vpk")
		if i < 2 {
			w.mustBeReady("vpr")
		}
	}
	w.eventually("vpr is silent", func() (string, error) {
		if ready, message := w.nodeReady("vpr"); ready {
			return "ready: " + message, nil
		}
		return "", nil
	})
	for _, name := range []string{"vpk", "vpr"} {
		w.waitForHolders(volumes[name], name)
		w.must(w.hosts[name].agent.Restart())
	}
	for _, name := range []string{"vpk", "vpr"} {
		w.eventually(name+" is ready again", func() (string, error) {
			if ready, message := w.nodeReady(name); !ready {
				return message, nil
			}
			return "", nil
		})
		w.waitForMount(name)
		w.deletePod(name, false)
		w.waitForDeletion(name)
		w.waitForUnmount(name)
	}
	for _, volume := range volumes {
		w.checkEnd(volume)
	}
}

// renewNodeLease sends a heartbeat of a host with this clock offset.
func (w *network) renewNodeLease(name string, off time.Duration) {
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

func (w *network) mustBeReady(name string) {
	w.t.Helper()
	if ready, message := w.nodeReady(name); !ready {
		w.t.Fatalf("node %s, which sends heartbeats, is not ready: %s", name, message)
	}
}

// nodeReady returns whether a node is ready, and the message of the condition.
func (w *network) nodeReady(name string) (bool, string) {
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
