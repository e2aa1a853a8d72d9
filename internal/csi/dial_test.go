package csi_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// patience bounds what must not hang.
const patience = time.Minute

// brief is enough for a call of a driver that answers immediately, and short enough to wait for one that never does.
const brief = 300 * time.Millisecond

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func dial(t *testing.T, d *csitest.Driver, opts ...csi.Option) *csi.Driver {
	t.Helper()
	c, err := csi.Dial(within(t, patience), d.Socket, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func always(a csitest.Action) func(int, any) csitest.Action {
	return func(int, any) csitest.Action { return a }
}

func once(a csitest.Action) func(int, any) csitest.Action {
	return func(n int, _ any) csitest.Action {
		if n == 1 {
			return a
		}
		return csitest.Action{}
	}
}

func newVolume(name string) *csipb.CreateVolumeRequest {
	return &csipb.CreateVolumeRequest{
		Name: name, CapacityRange: &csipb.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csipb.VolumeCapability{
			csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "", nil),
		},
	}
}

func create(t *testing.T, c *csi.Driver, name string) error {
	t.Helper()
	_, err := c.ControllerClient().CreateVolume(within(t, patience), newVolume(name))
	return err
}

func TestDial(t *testing.T) {
	config := csitest.Full()
	config.MaxVolumes = 7
	d := csitest.Start(t, config)
	c := dial(t, d)
	if c.Name != d.Name() || c.Version != "1.0" || c.Endpoint != d.Socket {
		t.Errorf("driver %q, version %q, endpoint %q", c.Name, c.Version, c.Endpoint)
	}
	for what, diff := range map[string]string{
		"plugin": cmp.Diff(config.Plugin, c.Plugin), "controller": cmp.Diff(config.Controller, c.Controller),
		"node": cmp.Diff(config.Node, c.Node),
	} {
		if diff != "" {
			t.Errorf("capabilities of the %s (-is +read):\n%s", what, diff)
		}
	}
	info, err := c.NodeInfo(within(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(csi.NodeInfo{ID: "node-1", MaxVolumes: 7, Topology: config.Segments}, info); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
}

func TestDialRefusesNames(t *testing.T) {
	for _, name := range []string{strings.Repeat("a", 64), "a/b", "a b", ".a", "a-", "ä", "a\nb", "../x"} {
		config := csitest.Full()
		config.Name = name
		if name == "" {
			continue
		}
		if _, err := csi.Dial(within(t, patience), csitest.Start(t, config).Socket); !errors.Is(err, csi.ErrName) {
			t.Errorf("%q: %v, want ErrName", name, err)
		}
	}
	d := csitest.Start(t, csitest.Full())
	d.Rename("")
	if _, err := csi.Dial(within(t, patience), d.Socket); !errors.Is(err, csi.ErrName) {
		t.Errorf("no name: %v, want ErrName", err)
	}
}

func TestDialWaitsUntilReady(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	d.OnCall("Probe", func(n int, _ any) csitest.Action {
		switch n {
		case 1:
			return csitest.Action{Err: status.Error(codes.Unavailable, "starting")}
		case 2:
			return csitest.Action{Answer: &csipb.ProbeResponse{Ready: wrapperspb.Bool(false)}}
		}
		return csitest.Action{Answer: &csipb.ProbeResponse{}}
	})
	dial(t, d)
}

func TestDialEnds(t *testing.T) {
	for what, script := range map[string]func(d *csitest.Driver){
		"no socket": (*csitest.Driver).Kill,
		"not ready": func(d *csitest.Driver) {
			d.OnCall("Probe", always(csitest.Action{Answer: &csipb.ProbeResponse{Ready: wrapperspb.Bool(false)}}))
		},
		"probe hangs": func(d *csitest.Driver) { d.OnCall("Probe", always(csitest.Action{Hang: true})) },
		"name hangs":  func(d *csitest.Driver) { d.OnCall("GetPluginInfo", always(csitest.Action{Hang: true})) },
		"capabilities hang": func(d *csitest.Driver) {
			d.OnCall("ControllerGetCapabilities", always(csitest.Action{Hang: true}))
		},
		"dies while asked": func(d *csitest.Driver) { d.OnCall("GetPluginCapabilities", always(csitest.Action{Kill: true})) },
		"refuses to be used": func(d *csitest.Driver) {
			d.OnCall("Probe", always(csitest.Action{Err: status.Error(codes.FailedPrecondition, "no")}))
		},
	} {
		t.Run(what, func(t *testing.T) {
			d := csitest.Start(t, csitest.Full())
			script(d)
			if c, err := csi.Dial(within(t, brief), d.Socket); err == nil {
				_ = c.Close()
				t.Error("there is a driver")
			}
		})
	}
}

func TestDriverWithoutNodeService(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	d.OnCall("NodeGetCapabilities", always(csitest.Action{Err: status.Error(codes.Unimplemented, "unknown service")}))
	if c := dial(t, d); c.Node != (csi.NodeCapabilities{}) {
		t.Errorf("capabilities %+v, want none", c.Node)
	}
}

func TestHangingDriver(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d, csi.WithControllerTimeout(brief))
	d.OnCall("GetCapacity", always(csitest.Action{Hang: true}))
	_, err := c.ControllerClient().GetCapacity(t.Context(), &csipb.GetCapacityRequest{})
	// The driver's side may notice the deadline first, and return Canceled.
	if csi.OutcomeOf(err) != volume.Unknown {
		t.Errorf("%v, want an unknown outcome", err)
	}
}

func TestDriverDiesDuringCall(t *testing.T) {
	for what, after := range map[string]bool{"before its work": false, "after its work": true} {
		t.Run(what, func(t *testing.T) {
			d := csitest.Start(t, csitest.Full())
			c := dial(t, d)
			d.OnCall("CreateVolume", once(csitest.Action{Kill: true, After: after}))
			if err := create(t, c, "v"); csi.OutcomeOf(err) != volume.Unknown {
				t.Fatalf("%v, want an unknown outcome", err)
			}
			if err := create(t, c, "v"); csi.OutcomeOf(err) != volume.Unknown {
				t.Fatalf("the driver is dead: %v, want an unknown outcome", err)
			}
			d.Restart()
			if err := noticed(t, c); err != nil {
				t.Fatalf("the driver is back: %v", err)
			}
			if n := len(d.Volumes()); n != 1 {
				t.Errorf("%d volumes, want 1", n)
			}
		})
	}
}

// noticed repeats a call while it fails because the old connection is lost; every other call must not have been made.
func noticed(t *testing.T, c *csi.Driver) error {
	t.Helper()
	ctx := within(t, patience)
	for {
		_, err := c.ControllerClient().CreateVolume(ctx, newVolume("v"))
		if csi.Code(err) != codes.Unavailable || errors.Is(err, csi.ErrOtherDriver) || ctx.Err() != nil {
			return err
		}
	}
}

func TestRestart(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	for range 20 {
		d.Restart()
		if err := noticed(t, c); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRenamedDriver(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	name := d.Name()
	d.Rename("other.example.com")
	d.Restart()
	for range 3 {
		err := noticed(t, c)
		if !errors.Is(err, csi.ErrOtherDriver) || csi.OutcomeOf(err) != volume.Unknown {
			t.Fatalf("%v, want ErrOther and an unknown outcome", err)
		}
		if want := "driver at " + d.Socket + " now calls itself \"other.example.com\", registered as \"" + name +
			"\""; !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if calls := d.Methods(); len(calls) != 0 {
		t.Errorf("another driver got the calls %v", calls)
	}
	d.Rename(name)
	if err := create(t, c, "v"); err != nil {
		t.Errorf("the registered driver is back: %v", err)
	}
}

// Calls that begin together on a lost connection must not bypass the check that one of them makes.
func TestRenamedDriverAndManyCalls(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	d.Rename("other.example.com")
	d.Restart()
	failed := make(chan error, 50)
	for range cap(failed) {
		go func() {
			_, err := c.ControllerClient().GetCapacity(t.Context(), &csipb.GetCapacityRequest{})
			failed <- err
		}()
	}
	for range cap(failed) {
		if err := <-failed; csi.OutcomeOf(err) != volume.Unknown {
			t.Errorf("%v, want an unknown outcome", err)
		}
	}
	if calls := d.Methods(); len(calls) != 0 {
		t.Errorf("another driver got the calls %v", calls)
	}
}

func TestNameHangsAfterRestart(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	d.Restart()
	d.OnCall("GetPluginInfo", always(csitest.Action{Hang: true}))
	_, err := c.ControllerClient().CreateVolume(within(t, brief), newVolume("v"))
	if csi.OutcomeOf(err) != volume.Unknown {
		t.Errorf("%v, want an unknown outcome", err)
	}
	d.OnCall("GetPluginInfo", always(csitest.Action{Err: status.Error(codes.Internal, "no idea")}))
	if err := create(t, c, "v"); csi.OutcomeOf(err) != volume.Unknown {
		t.Errorf("%v, want an unknown outcome: CreateVolume was not called", err)
	}
}

func TestClose(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	arrived := make(chan struct{})
	d.OnCall("GetCapacity", func(int, any) csitest.Action {
		close(arrived)
		return csitest.Action{Hang: true}
	})
	ended := make(chan error)
	go func() {
		_, err := c.ControllerClient().GetCapacity(t.Context(), &csipb.GetCapacityRequest{})
		ended <- err
	}()
	<-arrived
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; csi.Code(err) != codes.Canceled {
		t.Errorf("call under way: %v, want Canceled", err)
	}
	if err := create(t, c, "v"); csi.Code(err) != codes.Canceled {
		t.Errorf("later call: %v, want Canceled", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}
