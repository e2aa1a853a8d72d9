package node

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// restores has the next agent of the world say by the channel that it has restored the volumes of Pods.
func (w *world) restores(within time.Duration) <-chan struct{} {
	restored := make(chan struct{})
	w.tune = func(o *Options) {
		o.RestoreTime = within
		o.Restored = func(_ context.Context, works func(context.Context) error) {
			if err := works(w.t.Context()); err != nil {
				w.t.Error(err)
			}
			close(restored)
		}
	}
	return restored
}

// TestRestored: the start of an agent ends when the Pods that were there have their volumes. A Pod that waits for a
// user, or is terminating, is not waited for.
func TestRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.addVolume(driverName, "a")
	w.addVolume(driverName, "b")
	w.pod("p", "a")
	w.pod("no-claim", "missing")
	w.pod("ends", "b")
	w.terminate("ends")
	d := newFakeDriver(driverName, w.dir)
	staging, release := make(chan struct{}), make(chan struct{})
	d.setHook(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "stage:") {
			close(staging)
			<-release
		}
		return nil
	})
	d.start(t)
	restored := w.restores(timeout)
	w.run()
	<-staging
	select {
	case <-restored:
		t.Error("the volumes are restored before they are mounted")
	case <-time.After(3 * restoreStep):
	}
	close(release)
	<-restored
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
}

// TestRestoreTime: a driver that is not there delays the end of a start only for a time.
func TestRestoreTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	restored := w.restores(time.Millisecond)
	w.run()
	<-restored
}

// TestPulse: a loop that stands still is named, and the loops of an agent are known.
func TestPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p pulse
		p.turned("heartbeat")
		<-time.After(standstill)
		p.turned("resync")
		if err := p.works(t.Context()); err != nil {
			t.Error(err)
		}
		<-time.After(time.Second)
		const want = "the heartbeat of the node agent has stood still for 3m1s"
		if err := p.works(t.Context()); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		p.turned("heartbeat")
		if err := p.works(t.Context()); err != nil {
			t.Error(err)
		}
	})
	w := newWorld(t)
	w.run()
	eventually(t, func() string {
		w.agent.pulse.mu.Lock()
		defer w.agent.pulse.mu.Unlock()
		for _, loop := range []string{"heartbeat", "registration of drivers", "resync"} {
			if w.agent.pulse.last[loop].IsZero() {
				return "the loop " + loop + " has not turned"
			}
		}
		return ""
	})
}
