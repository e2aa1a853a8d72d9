package csi_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

// TestTwoProcesses: a driver in two processes says CONTROLLER_SERVICE at both of its sockets, and has its controller
// at one of them.
func TestTwoProcesses(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	for _, c := range []struct {
		what, socket     string
		controller, node bool
	}{
		{"one process", d.Socket, true, true},
		{"the controller's", d.ControllerSocket(), true, false},
		{"the node's", d.NodeSocket(), false, true},
	} {
		got, err := csi.Dial(within(t, patience), c.socket)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		defer got.Close()
		if !got.Plugin.ControllerService || got.HasController != c.controller ||
			got.Controller.PublishUnpublish != c.controller || got.Node.StageUnstage != c.node {
			t.Errorf("%s: controller %t %+v, node %+v", c.what, got.HasController, got.Controller, got.Node)
		}
	}
}

// TestControllerThatFails: a controller that fails still exists at this socket; only Unimplemented means that it is
// elsewhere.
func TestControllerThatFails(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	for _, code := range []codes.Code{codes.Internal, codes.PermissionDenied, codes.Unavailable} {
		_, err := csi.Dial(within(t, patience), d.Socket, csi.WithFault(func(
			_ context.Context, _, method string, call func() error,
		) error {
			if strings.HasSuffix(method, "ControllerGetCapabilities") {
				return status.Error(code, "no")
			}
			return call()
		}))
		if csi.Code(err) != code {
			t.Errorf("%v, want %v", err, code)
		}
	}
}

// TestNodeOnly: a driver whose node process exits when it is called as a controller can be reached by callers who know
// that this process has no controller. Other callers get the error of its death.
func TestNodeOnly(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	d.OnCall("ControllerGetCapabilities", func(int, any) csitest.Action { return csitest.Action{Kill: true} })
	if _, err := csi.Dial(within(t, patience), d.Socket); !errors.Is(err, csi.ErrControllerLost) {
		t.Errorf("a driver that dies of the question: %v", err)
	}
	d.Restart()
	got, err := csi.Dial(within(t, patience), d.Socket, csi.WithNodeOnly())
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if got.HasController || !got.Plugin.ControllerService || !got.Node.StageUnstage {
		t.Errorf("controller %t, plugin %+v, node %+v", got.HasController, got.Plugin, got.Node)
	}
}

// TestNameOnly: a caller that needs only the name neither waits until the driver is ready nor calls anything else. A
// driver that does not listen yet is awaited.
func TestNameOnly(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	refuse := csi.WithFault(func(
		_ context.Context, _, method string, call func() error,
	) error {
		if strings.HasSuffix(method, "/GetPluginInfo") {
			return call()
		}
		return status.Error(codes.FailedPrecondition, "not healthy yet")
	})
	if _, err := csi.Dial(within(t, brief), d.Socket, refuse); csi.Code(err) != codes.FailedPrecondition {
		t.Errorf("all that it says of itself: %v", err)
	}
	got, err := csi.Dial(within(t, patience), d.Socket, refuse, csi.WithNameOnly())
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if got.Name != d.Name() || got.Version != "1.0" || got.HasController {
		t.Errorf("%q %q, controller %t", got.Name, got.Version, got.HasController)
	}
	late := make(chan error, 1)
	d.Kill()
	go func() {
		late1, err := csi.Dial(within(t, patience), d.Socket, csi.WithNameOnly())
		if err == nil {
			_ = late1.Close()
		}
		late <- err
	}()
	d.Restart()
	if err := <-late; err != nil {
		t.Errorf("a driver that starts late: %v", err)
	}
	d.Rename("-")
	if _, err := csi.Await(t.Context(), d.Socket, func(error) {}); !errors.Is(err, csi.ErrName) {
		t.Errorf("%v, want ErrName", err)
	}
}

// TestTerm: a process that loses the right to call a driver makes no further calls, and does not wait for the call in
// flight.
func TestTerm(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	whole := dial(t, d)
	term, end := context.WithCancel(t.Context())
	limited := whole.Within(term, func() bool { return true })
	if err := create(t, limited, "v"); err != nil {
		t.Fatal(err)
	}
	arrived := make(chan struct{})
	d.OnCall("CreateVolume", func(int, any) csitest.Action {
		close(arrived)
		return csitest.Action{Hang: true}
	})
	flying := make(chan error)
	go func() {
		_, err := limited.ControllerClient().CreateVolume(t.Context(), newVolume("w"))
		flying <- err
	}()
	<-arrived
	end()
	if err := <-flying; csi.Code(err) != codes.Canceled {
		t.Errorf("in flight: %v, want Canceled", err)
	}
	called := len(d.Calls())
	if err := create(t, limited, "x"); !errors.Is(err, csi.ErrTerm) || csi.Code(err) != codes.Unavailable {
		t.Errorf("afterwards: %v, want ErrTerm", err)
	}
	if now := len(d.Calls()); now != called {
		t.Errorf("%d calls after the term", now-called)
	}
	if _, err := whole.ControllerClient().GetCapacity(t.Context(), &csipb.GetCapacityRequest{}); err != nil {
		t.Errorf("the driver itself: %v", err)
	}
}

// TestTermIsUncertain: a process that was suspended does not call a driver when the clock says that its term may be
// over, although nothing has ended the term yet: neither by a new call, nor by one that waits for another one about the
// same volume.
func TestTermIsUncertain(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	var over atomic.Bool
	asked := make(chan struct{}, 10)
	limited := dial(t, d).Within(t.Context(), func() bool {
		certain := !over.Load()
		asked <- struct{}{}
		return certain
	})
	arrived, answer := make(chan struct{}), make(chan struct{})
	d.OnCall("CreateVolume", func(int, any) csitest.Action {
		close(arrived)
		<-answer
		return csitest.Action{}
	})
	first, waiting := make(chan error, 1), make(chan error, 1)
	go func() { first <- create(t, limited, "v") }()
	<-arrived
	called := len(d.Calls())
	for range 2 {
		<-asked // before and after waiting for another call, which does not exist
	}
	go func() { waiting <- create(t, limited, "v") }()
	<-asked
	over.Store(true)
	if err := create(t, limited, "w"); !errors.Is(err, csi.ErrTerm) {
		t.Errorf("a new call: %v, want ErrTerm", err)
	}
	close(answer)
	if err := <-first; err != nil {
		t.Errorf("in flight: %v", err)
	}
	if err := <-waiting; !errors.Is(err, csi.ErrTerm) {
		t.Errorf("the call that waited: %v, want ErrTerm", err)
	}
	if n := len(d.Calls()); n != called {
		t.Errorf("the driver was called %d times more", n-called)
	}
}
