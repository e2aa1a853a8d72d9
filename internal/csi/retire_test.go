package csi_test

import (
	"errors"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

// TestRetire: a call in flight at a driver that is being replaced ends normally, the new driver waits for it, and only
// then the connection is closed.
func TestRetire(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	turns := csi.NewVolumeLocks()
	before, after := dial(t, d, csi.WithVolumeLocks(turns)), dial(t, d, csi.WithVolumeLocks(turns))
	arrived, goOn := make(chan struct{}), make(chan struct{})
	d.OnCall("CreateVolume", func(n int, _ any) csitest.Action {
		if n == 1 {
			close(arrived)
			<-goOn
		}
		return csitest.Action{}
	})
	ended := make(chan error)
	go func() {
		_, err := before.ControllerClient().CreateVolume(t.Context(), newVolume("v"))
		ended <- err
	}()
	<-arrived
	before.Retire()
	before.Retire()
	if _, err := after.ControllerClient().CreateVolume(within(t, brief), newVolume("v")); !errors.Is(err, csi.ErrBusy) {
		t.Errorf("%v, want ErrBusy: the driver works on the volume", err)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("the call under way: %v", err)
	}
	if _, err := before.ControllerClient().GetCapacity(t.Context(),
		&csipb.GetCapacityRequest{}); csi.Code(err) != codes.Canceled {
		t.Errorf("later call: %v, want Canceled", err)
	}
	if err := create(t, after, "v"); err != nil {
		t.Error(err)
	}
}

// TestRetireIdle: an idle connection is closed immediately.
func TestRetireIdle(t *testing.T) {
	c := dial(t, csitest.Start(t, csitest.Full()))
	c.Retire()
	if err := create(t, c, "v"); csi.Code(err) != codes.Canceled {
		t.Errorf("later call: %v, want Canceled", err)
	}
}
