package hosts

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// beats is how many heartbeats of a host with another clock are sent: for longer
// than a node may be silent.
const beats = 12

// TestClocksDiffer: the clock of a host is an hour behind, then an hour ahead.
// As long as it sends heartbeats it is ready, and when it stops it is not; its
// volume is touched in neither case.
func TestClocksDiffer(t *testing.T) {
	w := newWorld(t, "vpk")
	volume := w.claim("data")
	w.pod("k", "data", "vpk")
	w.mounted("k")
	w.has(volume, "vpk")
	// No process has a clock of its own: its heartbeats are sent in its place.
	w.hosts["vpk"].agent.Kill()
	every := time.NewTicker(5 * time.Second)
	defer every.Stop()
	for range beats {
		w.beat("vpk", -time.Hour)
		<-every.C
		if ready, message := w.ready("vpk"); !ready {
			t.Fatalf("it is an hour behind and taken for dead: %s", message)
		}
	}
	w.beat("vpk", time.Hour)
	w.until("vpk is silent", func() (string, error) {
		if ready, message := w.ready("vpk"); ready {
			return "ready: " + message, nil
		}
		return "", nil
	})
	w.has(volume, "vpk")
	w.must(w.hosts["vpk"].agent.Again())
	w.until("vpk is back", func() (string, error) {
		if ready, message := w.ready("vpk"); !ready {
			return message, nil
		}
		return "", nil
	})
	w.mounted("k")
	w.remove("k", false)
	w.gone("k")
	w.unmounted("vpk")
	w.nothingWrong(volume)
}

// beat renews a host's Lease with a time that is off.
func (w *world) beat(name string, off time.Duration) {
	w.t.Helper()
	leases := w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	// The last one of the agent itself may come in between.
	w.until(name+" gives a sign", func() (string, error) {
		lease, err := leases.Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now().Add(off)))
		_, err = leases.Update(w.ctx, lease, metav1.UpdateOptions{})
		return "", err
	})
}

func (w *world) ready(name string) (bool, string) {
	w.t.Helper()
	n, err := w.client.CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, "it says nothing"
}
