package csitest_test

import (
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

// TestInMemory: in a bubble, a call that hangs ends at its time limit without waiting for it, and a driver that was
// killed and restarted is reached again.
func TestInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := csitest.InMemory(t, csitest.Full())
		c := d.Dial()
		d.OnCall("GetCapacity", func(n int, _ any) csitest.Action { return csitest.Action{Hang: n == 1} })
		ask := func(want codes.Code) {
			t.Helper()
			_, err := c.ControllerClient().GetCapacity(t.Context(), &csipb.GetCapacityRequest{})
			if got := csi.Code(err); got != want {
				t.Errorf("%v, want %s", err, want)
			}
		}
		begun := time.Now()
		ask(codes.DeadlineExceeded)
		if after := time.Since(begun); after != 15*time.Second {
			t.Errorf("the call ended after %s", after)
		}
		ask(codes.OK)
		d.Kill()
		synctest.Wait() // until its end is noticed
		ask(codes.Unavailable)
		d.Restart()
		ask(codes.OK)
	})
}
