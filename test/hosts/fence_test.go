package hosts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOneWriter: whatever happens to hosts and control plane, a volume for one
// host at a time is written to by one.
func TestOneWriter(t *testing.T) {
	w := newWorld(t, "vpa", "vpb", "vpc")
	w.writers("vpa", "vpb", "vpc")
	volume := w.claim("data")
	w.pod("a", "data", "vpa")
	w.mounted("a")
	w.writes(volume, "vpa")

	w.cut("vpa")
	w.pod("b", "data", "vpb")
	w.hears("b", "Multi-Attach", "vpa")
	// A host that cannot be heard of may well be writing, also for a control
	// plane that has forgotten everything.
	w.writes(volume, "vpa")
	w.remove("a", true)
	w.crash()
	w.gone("a")
	w.meanwhile("vpc")
	w.has(volume, "vpa")
	w.writes(volume, "vpa")

	w.taint("vpa", true)
	w.has(volume, "vpb")
	w.mounted("b")
	w.writes(volume, "vpb")
	// It does not know, and goes on.
	w.refused(volume, "vpa")

	w.plug("vpa")
	w.unmounted("vpa")
	w.taint("vpa", false)
	w.writes(volume, "vpb")

	// A host that comes back in time keeps what it has.
	w.cut("vpb")
	w.meanwhile("vpc")
	w.writes(volume, "vpb")
	w.plug("vpb")
	w.writes(volume, "vpb")

	// A host that is lost for good: its Node is deleted.
	w.hosts["vpb"].agent.Kill()
	w.cut("vpb")
	w.pod("c", "data", "vpc")
	w.hears("c", "Multi-Attach", "vpb")
	w.remove("b", true)
	w.meanwhile("vpc")
	w.has(volume, "vpb")
	w.must(w.client.CoreV1().Nodes().Delete(w.ctx, "vpb", metav1.DeleteOptions{}))
	w.has(volume, "vpc")
	w.mounted("c")
	w.writes(volume, "vpc")
	w.refused(volume, "vpb")
	w.plug("vpb")
	w.must(w.hosts["vpb"].agent.Again())
	w.registered("vpb")
	w.unmounted("vpb")
	w.writes(volume, "vpc")
	w.remove("c", false)
	w.gone("c")
	w.unmounted("vpc")
	w.nothingWrong(volume)
}

// meanwhile has another volume's whole life on a host, which leaves time to do
// the wrong thing to this one.
func (w *world) meanwhile(host string) {
	w.t.Helper()
	w.lives++
	name := fmt.Sprint("other-", w.lives)
	volume := w.claim(name)
	w.pod(name, name, host)
	w.mounted(name)
	w.remove(name, false)
	w.gone(name)
	w.has(volume)
}

// writers has a program on each host that writes to whatever is mounted there.
func (w *world) writers(hosts ...string) {
	for _, h := range hosts {
		done := make(chan struct{})
		go func() {
			defer close(done)
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-w.ctx.Done():
					return
				case <-tick.C:
					w.array.write(h)
				}
			}
		}()
		w.t.Cleanup(func() { <-done })
	}
}

// hears waits for an event about a Pod with all the words.
func (w *world) hears(pod string, words ...string) {
	w.t.Helper()
	w.until("pod "+pod+" hears "+strings.Join(words, " "), func() (string, error) {
		events, err := w.client.CoreV1().Events("default").List(w.ctx,
			metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return "", err
		}
		var heard []string
		for _, e := range events.Items {
			heard = append(heard, e.Message)
			if containsAll(e.Message, words) {
				return "", nil
			}
		}
		return fmt.Sprint(heard), nil
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

// nothingWrong waits until no host has the volume.
func (w *world) nothingWrong(volume string) {
	w.t.Helper()
	w.has(volume)
	w.array.mu.RLock()
	defer w.array.mu.RUnlock()
	for _, text := range w.array.wrong {
		w.t.Error(text)
	}
	if d := w.array.disks[volume]; len(d.targets) > 0 {
		w.t.Errorf("mounts are left: %v", d.targets)
	}
	w.t.Logf("writes %v, refused %v", w.array.disks[volume].written, w.array.disks[volume].refused)
}
