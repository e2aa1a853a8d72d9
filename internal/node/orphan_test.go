package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/mount"
)

// TestOrphans: at the start mounts go that only an agent can have made and that
// nobody owns; those of strangers and of living Pods stay.
func TestOrphans(t *testing.T) {
	w := newWorld(t, noAttach(driverName))
	t.Cleanup(w.detachAll)
	gone, staged := targetPath(w.dir, "uid-gone", "pv-x", false), stagingPath(w.dir, driverName, "h-x", "pv-x", false)
	lives, strange := targetPath(w.dir, "uid-p", "pv-y", false), filepath.Join(w.dir, "strange")
	for _, at := range []string{gone, staged, lives, strange} {
		w.must(nil, os.MkdirAll(at, 0o700))
		w.must(nil, unix.Mount("none", at, "tmpfs", 0, ""))
	}
	w.pod("p", "claim-that-is-missing")
	w.run()
	eventually(t, func() string {
		points, err := mount.Below(w.dir)
		if err != nil || len(points) != 2 {
			return fmt.Sprint("mounts: ", points, err)
		}
		return ""
	})
	for _, at := range []string{lives, strange} {
		if _, mounted, err := mount.At(at); err != nil || !mounted {
			t.Errorf("%s was taken away, %v", at, err)
		}
	}
}

// TestPanicIsOneVolumesOwn: work that panics is tried again, and the other
// volumes are worked on.
func TestPanicIsOneVolumesOwn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done, tries := make(chan string, 10), 0
	d := newDispatcher(time.Millisecond, time.Millisecond, func(_ context.Context, key string) error {
		if key == "d^bad" {
			if tries++; tries < 3 {
				panic("poison")
			}
		}
		done <- key
		return nil
	}, slog.New(slog.DiscardHandler))
	d.add("d^bad")
	d.add("d^good")
	ended := make(chan struct{})
	go func() {
		d.run(ctx)
		close(ended)
	}()
	if first, second := <-done, <-done; first == second {
		t.Errorf("done: %s twice", first)
	}
	cancel()
	<-ended
}

// TestRunningPodKeepsItsVolume when the objects are gone that led to it; it is
// taken away with the Pod.
func TestRunningPodKeepsItsVolume(t *testing.T) {
	w, d := running(t, noAttach(driverName))
	w.wire(driverName, "a")
	w.pod("p", "a")
	w.says("p", corev1.ConditionTrue, "v-a=")
	w.must(nil, w.client.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	w.must(nil, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), "pv-a", metav1.DeleteOptions{}))
	w.says("p", corev1.ConditionFalse, "ClaimMissing")
	w.agent.addAll("")
	w.wire(driverName, "b")
	w.pod("q", "b")
	w.says("q", corev1.ConditionTrue, "v-b=")
	if got := d.history(); strings.Contains(got, "unpublish:") {
		t.Errorf("calls: %s", got)
	}
	for _, p := range []string{"p", "q"} {
		w.terminate(p)
		w.gone(p)
	}
	w.empty()
}

// TestBusyOrphan: somebody has deleted the journal's records, the Pod is gone,
// and what it had cannot be unmounted because it is in use. The volume is not
// given up for a detach until it can.
func TestBusyOrphan(t *testing.T) {
	w := newWorld(t)
	t.Cleanup(w.detachAll)
	w.tune = doubts
	d := newFakeDriver(driverName, w.dir)
	d.mount = tmpfs
	d.start(t)
	w.run()
	w.registered(driverName)
	w.wire(driverName, "a")
	w.attach(driverName, "a")
	w.pod("p", "a")
	w.says("p", corev1.ConditionTrue, "v-a=")
	busy, err := os.Create(filepath.Join(targetPath(w.dir, "uid-p", "pv-a", false), "open"))
	w.must(nil, err)
	defer busy.Close()
	w.stop()
	records, err := filepath.Glob(filepath.Join(w.dir, "journal/*.json"))
	w.must(nil, err)
	for _, r := range records {
		w.must(nil, os.Remove(r))
	}
	w.must(nil, w.client.CoreV1().Pods("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}))
	d.setHook(func(context.Context, string) error {
		if len(w.node().Status.VolumesInUse) == 0 {
			t.Error("the node does not say that it uses the volume")
		}
		return nil
	})
	w.run()
	eventually(t, func() string {
		if !strings.Contains(d.history(), "unpublish:") {
			return "the driver is not asked to take it away: " + d.history()
		}
		return ""
	})
	if used := w.node().Status.VolumesInUse; len(used) != 1 {
		t.Errorf("the node says that it uses %v", used)
	}
	w.must(nil, busy.Close())
	eventually(t, func() string {
		if used := w.node().Status.VolumesInUse; len(used) > 0 {
			return fmt.Sprint("the node says that it uses ", used)
		}
		return ""
	})
	if left, err := mount.Below(w.dir); err != nil || len(left) > 0 {
		t.Errorf("still mounted: %v, %v", left, err)
	}
}
