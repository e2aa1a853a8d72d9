package csi_test

import (
	"sync/atomic"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

// TestNameTimeout: a call for the name that hangs is repeated after its time limit.
func TestNameTimeout(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	var asked atomic.Int64
	d.OnCall("GetPluginInfo", func(n int, _ any) csitest.Action {
		asked.Store(int64(n))
		return csitest.Action{Hang: n == 1}
	})
	got, err := csi.Dial(within(t, patience), d.Socket, csi.WithNameOnly(), csi.WithNameTimeout(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if n := asked.Load(); n < 2 || got.Name != d.Name() {
		t.Errorf("%q after %d questions", got.Name, n)
	}
}

// TestProbe: a driver is probed over a new connection, as soon as it listens, and within the time limit.
func TestProbe(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	d.OnCall("Probe", func(n int, _ any) csitest.Action {
		return csitest.Action{Answer: &csipb.ProbeResponse{Ready: wrapperspb.Bool(n == 1)}}
	})
	for _, want := range []bool{true, false} {
		if ready, err := csi.Probe(within(t, patience), d.Socket); ready != want || err != nil {
			t.Errorf("ready %v, want %v: %v", ready, want, err)
		}
	}
	d.Kill()
	if _, err := csi.Probe(within(t, 10*time.Millisecond), d.Socket); err == nil {
		t.Error("a dead driver answers")
	}
	answered := make(chan error, 1)
	go func() {
		_, err := csi.Probe(within(t, patience), d.Socket)
		answered <- err
	}()
	d.Restart()
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
