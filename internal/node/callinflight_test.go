package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestCallOutlivesTheRegistration: a driver registers again, or disappears and comes back, while a call
// is in flight. The agent waits for the call, and repeats it neither before nor after its end.
func TestCallOutlivesTheRegistration(t *testing.T) {
	t.Parallel()
	for name, registerAgain := range map[string]func(*testing.T, *world, *fakeDriver){
		"again": func(t *testing.T, w *world, d *fakeDriver) {
			w.agent.node.Changed(nil, nil)
			eventually(t, func() string {
				if len(d.answers()) < 2 {
					return "the driver has not registered again"
				}
				return ""
			})
		},
		"back": func(_ *testing.T, w *world, d *fakeDriver) {
			away := filepath.Join(w.dir, "away.sock")
			w.must(nil, os.Rename(d.socket(), away))
			w.registered()
			w.must(nil, os.Rename(away, d.socket()))
			w.registered(driverName)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, d := newRunningWorld(t, noAttach(driverName))
			arrived, goOn := make(chan struct{}, 10), make(chan struct{})
			var under, overlaps atomic.Int32
			d.setHook(func(_ context.Context, call string) error {
				if strings.HasPrefix(call, "info") {
					return nil
				}
				if under.Add(1) > 1 {
					overlaps.Add(1)
				}
				defer under.Add(-1)
				arrived <- struct{}{}
				<-goOn
				return nil
			})
			w.addVolume(driverName, "a")
			w.pod("p", "a")
			<-arrived
			registerAgain(t, w, d)
			close(goOn)
			w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
			if got := strings.ReplaceAll(d.history(), "info ", ""); overlaps.Load() > 0 || got != "stage:h-a:: publish:h-a" {
				t.Errorf("%d calls overlapped others: %s", overlaps.Load(), got)
			}
		})
	}
}
