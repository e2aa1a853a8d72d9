package hosts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOneWriter: whatever happens to the hosts and to the control plane, only one host at a time writes to
// a volume that is for one host.
func TestOneWriter(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "vpa", "vpb", "vpc")
	w.startWriters("vpa", "vpb", "vpc")
	volume := w.createClaim("data")
	w.createPod("a", "data", "vpa")
	w.waitForMount("a")
	w.waitForWrite(volume, "vpa")

	w.disconnect("vpa")
	w.createPod("b", "data", "vpb")
	w.waitForEvent("b", "Multi-Attach", "vpa")
	// A host that the control plane cannot reach may still be writing. A restarted control plane, which has only the API's
	// objects, must respect that as well.
	w.waitForWrite(volume, "vpa")
	w.deletePod("a", true)
	w.restartPlane()
	w.waitForDeletion("a")
	w.runAnotherVolume("vpc")
	w.waitForHolders(volume, "vpa")
	w.waitForWrite(volume, "vpa")

	w.setOutOfService("vpa", true)
	w.waitForHolders(volume, "vpb")
	w.waitForMount("b")
	w.waitForWrite(volume, "vpb")
	// The disconnected host does not know that it lost the volume, and tries to write.
	w.waitForRefusedWrite(volume, "vpa")

	w.reconnect("vpa")
	w.waitForUnmount("vpa")
	w.setOutOfService("vpa", false)
	w.waitForWrite(volume, "vpb")

	// A host that is disconnected for a short time keeps its volume.
	w.disconnect("vpb")
	w.runAnotherVolume("vpc")
	w.waitForWrite(volume, "vpb")
	w.reconnect("vpb")
	w.waitForWrite(volume, "vpb")

	// A host never returns, and an administrator deletes its Node.
	w.hosts["vpb"].agent.Kill()
	w.disconnect("vpb")
	w.createPod("c", "data", "vpc")
	w.waitForEvent("c", "Multi-Attach", "vpb")
	w.deletePod("b", true)
	w.runAnotherVolume("vpc")
	w.waitForHolders(volume, "vpb")
	w.must(w.client.CoreV1().Nodes().Delete(w.ctx, "vpb", metav1.DeleteOptions{}))
	w.waitForHolders(volume, "vpc")
	w.waitForMount("c")
	w.waitForWrite(volume, "vpc")
	w.waitForRefusedWrite(volume, "vpb")
	w.reconnect("vpb")
	w.must(w.hosts["vpb"].agent.Restart())
	w.waitForRegistration("vpb")
	w.waitForUnmount("vpb")
	w.waitForWrite(volume, "vpc")
	w.deletePod("c", false)
	w.waitForDeletion("c")
	w.waitForUnmount("vpc")
	w.checkEnd(volume)
}

// runAnotherVolume creates, mounts and deletes another volume on a host. That gives the control plane
// time to do something wrong with the volume of the test.
func (w *network) runAnotherVolume(host string) {
	w.t.Helper()
	w.otherVolumes++
	name := fmt.Sprint("other-", w.otherVolumes)
	volume := w.createClaim(name)
	w.createPod(name, name, host)
	w.waitForMount(name)
	w.deletePod(name, false)
	w.waitForDeletion(name)
	w.waitForHolders(volume)
}

// startWriters makes each host write continuously to all volumes that are mounted there.
func (w *network) startWriters(hosts ...string) {
	for _, h := range hosts {
		done := make(chan struct{})
		go func() {
			defer close(done)
			ticker := time.NewTicker(2 * time.Millisecond)
			defer ticker.Stop()
			for {
				select {
				case <-w.ctx.Done():
					return
				case <-ticker.C:
					w.array.Write(h)
				}
			}
		}()
		w.t.Cleanup(func() { <-done })
	}
}

// waitForEvent waits for an event about a Pod whose message contains all words.
func (w *network) waitForEvent(pod string, words ...string) {
	w.t.Helper()
	w.eventually("event about pod "+pod+": "+strings.Join(words, " "), func() (string, error) {
		events, err := w.client.CoreV1().Events("default").List(w.ctx,
			metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return "", err
		}
		var messages []string
		for _, e := range events.Items {
			messages = append(messages, e.Message)
			if containsAll(e.Message, words) {
				return "", nil
			}
		}
		return fmt.Sprint(messages), nil
	})
}

func containsAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// checkEnd waits until no host has the volume, and reports what went wrong at the array during the test.
func (w *network) checkEnd(volume string) {
	w.t.Helper()
	w.waitForHolders(volume)
	for _, text := range w.array.Violations() {
		w.t.Error(text)
	}
	if at := w.array.Mounted(volume); len(at) > 0 {
		w.t.Errorf("the volume is still mounted at %v", at)
	}
	for name := range w.hosts {
		written, refused := w.array.Counts(volume, name)
		w.t.Logf("%s: %d writes, %d refused", name, written, refused)
	}
}
