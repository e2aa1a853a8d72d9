package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/mount"
)

// ill counts the events about a volume's health at an object.
func (w *world) health(kind string) (ill, well int) {
	events, err := w.client.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{})
	w.must(nil, err)
	for _, e := range events.Items {
		switch {
		case e.InvolvedObject.Kind != kind:
		case e.Reason == "VolumeConditionAbnormal":
			ill += int(e.Count)
		case e.Reason == "VolumeConditionNormal":
			well += int(e.Count)
		}
	}
	return ill, well
}

// TestStatsAndHealth: what a driver says of its volumes is kept as long as they
// are mounted; that one falls ill is told once at its Pod and its claim, and
// that it is healthy again.
func TestStatsAndHealth(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName), noAttach("slow.example"))
	w.tune = func(o *Options) { o.StatsEvery = 10 * time.Millisecond }
	d, slow := newFakeDriver(driverName, w.dir), newFakeDriver("slow.example", w.dir)
	d.hasHealth, slow.hasHealth = true, true
	d.usage = []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: 10, Used: 4, Available: 6}, {Unit: csipb.VolumeUsage_INODES, Total: 5},
	}
	d.start(t)
	slow.start(t)
	w.run()
	// The claim of another object with the handle hears nothing.
	w.addVolume(driverName, "0", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "h-a" })
	w.mountVolume()
	eventually(t, func() string {
		s, _ := w.agent.health.Of("d.example^h-a")
		if s.ClaimName != "a" || s.Usage != (mount.Usage{Total: 10, Used: 4, Available: 6, Inodes: 5}) || s.At.IsZero() {
			return "no statistics"
		}
		return ""
	})
	d.set(func() {
		d.problems = []*csipb.VolumeHealth_VolumeHealthEntry{
			{Status: csipb.VolumeHealthErrorType_DEGRADED, Reason: "OnePath", Message: "one path is\nleft"},
		}
	})
	w.eventSaid("VolumeConditionAbnormal", "DEGRADED OnePath: one path is left")
	asked := strings.Count(d.history(), "stats:")
	eventually(t, func() string {
		if strings.Count(d.history(), "stats:") < asked+5 {
			return "not asked again"
		}
		return ""
	})
	d.set(func() { d.problems = nil })
	w.eventSaid("VolumeConditionNormal", "healthy again")
	eventually(t, func() string {
		for _, kind := range []string{"Pod", "PersistentVolumeClaim"} {
			if ill, well := w.health(kind); ill != 1 || well != 1 {
				return "not told once at the " + kind
			}
		}
		return ""
	})
	w.end("p")
	eventually(t, func() string {
		if _, known := w.agent.health.Of("d.example^h-a"); known {
			return "what is gone is still known"
		}
		return ""
	})
}

// TestStatsOfAHangingDriver keep nobody waiting: not the next of its volumes
// that is to be mounted, not the answers of other drivers, and not the agent's
// end.
func TestStatsOfAHangingDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName), noAttach("quick.example"))
	w.tune = func(o *Options) { o.StatsEvery = 10 * time.Millisecond }
	d, quick := newFakeDriver(driverName, w.dir), newFakeDriver("quick.example", w.dir)
	d.hasHealth, quick.hasHealth = true, true
	d.setHook(func(ctx context.Context, call string) error {
		if strings.HasPrefix(call, "stats:") {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	d.start(t)
	quick.start(t)
	w.run()
	w.mountVolume()
	asked := func(d *fakeDriver, times int) {
		t.Helper()
		eventually(t, func() string {
			if got := strings.Count(d.history(), "stats:"); got < times {
				return fmt.Sprintf("driver %s was asked %d times", d.name, got)
			}
			return ""
		})
	}
	asked(d, 1)
	w.addVolume(driverName, "b")
	w.pod("q", "b")
	w.awaitCondition("q", corev1.ConditionTrue, "v-b=")
	w.addVolume("quick.example", "c")
	w.pod("r", "c")
	asked(quick, 5)
	w.stop()
}
