package app

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/sidecar"
)

// caller is a process that calls drivers.
type caller struct {
	t               *testing.T
	reached, called *csi.Set
	stop            func()
}

func newCaller(t *testing.T, client kubernetes.Interface, identity string) *caller {
	c := &caller{t: t, reached: csi.NewSet(), called: csi.NewSet()}
	leads := &DriverLeads{
		Reached: []*csi.Set{c.reached}, Called: c.called, Log: slog.New(slog.DiscardHandler),
		Homes: func(string) (Home, bool) { return Home{}, true },
		Locks: func(driver string, _ bool) ([]WatchedLock, sidecar.Term) {
			var out []WatchedLock
			for _, name := range leaseNames(DriverControllers(), driver) {
				out = append(out, newLock(client, name, identity).watched())
			}
			return out, usualTerm
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- leads.Run(ctx) }()
	c.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return c
}

// calls fails the test unless the process may call exactly these drivers.
func (c *caller) calls(when string, want ...string) {
	c.t.Helper()
	synctest.Wait()
	if got := c.called.Names(); !slices.Equal(got, want) {
		c.t.Errorf("%s: it calls %q, want %q", when, got, want)
	}
}

// pass lets time go on: no program of a test waits in real time.
func pass(d time.Duration) { <-time.After(d) }

// TestOneCalls: of two processes that reach a driver one calls it, under the leases of upstream's sidecars.
func TestOneCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		d := csitest.InMemory(t, csitest.Full())
		a := newCaller(t, client, "a")
		a.calls("nothing is reached")
		a.reached.Put(d.Dial())
		pass(time.Second)
		a.calls("the only one", d.Name())
		for _, name := range []string{
			"test-csi-example-com", "external-attacher-leader-test-csi-example-com", "external-resizer-test-csi-example-com",
			"external-health-monitor-leader-test-csi-example-com",
		} {
			l, err := client.CoordinationV1().Leases("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || ptr.Deref(l.Spec.HolderIdentity, "") != "a" {
				t.Errorf("lease %s: %v %v", name, l, err)
			}
		}
		b := newCaller(t, client, "b")
		b.reached.Put(d.Dial())
		pass(time.Minute)
		b.calls("the other one")
		theirs, _ := a.called.Get(d.Name())
		a.stop()
		a.calls("it has ended")
		if _, err := theirs.NodeInfo(t.Context()); csi.Code(err).String() != "Unavailable" {
			t.Errorf("it still calls the driver: %v", err)
		}
		pass(usualTerm.Duration + usualTerm.Retry)
		b.calls("nobody else calls it", d.Name())
		b.stop()
	})
}

// TestControllerHalf: a node's socket is never called as a controller, and a controller's wherever it comes from.
func TestControllerHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCaller(t, fake.NewClientset(), "a")
		node, controller := &csi.Driver{Name: "d"}, &csi.Driver{Name: "d", HasController: true}
		c.reached.Put(node)
		pass(time.Minute)
		c.calls("its node half is here")
		c.reached.Put(controller)
		pass(time.Second)
		c.calls("its controller is here", "d")
		c.reached.Put(node)
		c.calls("its controller has gone")
		c.reached.Put(controller)
		c.calls("it is back before the leases are given back", "d")
		again := &csi.Driver{Name: "d", HasController: true, Version: "2"}
		c.reached.Put(again)
		c.calls("it was replaced", "d")
		if now, _ := c.called.Get("d"); now.Version != "2" {
			t.Errorf("version %q is called", now.Version)
		}
		c.stop()
	})
}

// TestLinger: the leases of a driver that restarts are kept, and those of one that has gone are free for another
// process.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		here := &csi.Driver{Name: "d", HasController: true}
		a, b := newCaller(t, client, "a"), newCaller(t, client, "b")
		a.reached.Put(here)
		pass(time.Second)
		b.reached.Put(&csi.Driver{Name: "d", HasController: true})
		pass(time.Minute)
		a.reached.Remove(here)
		pass(linger - time.Second)
		b.calls("it may come back")
		a.reached.Put(here)
		pass(time.Minute)
		a.calls("it has come back", "d")
		a.reached.Remove(here)
		pass(linger + usualTerm.Retry + 2*time.Second)
		a.calls("it has gone")
		b.calls("it has gone there", "d")
		a.reached.Put(here)
		pass(time.Minute)
		a.calls("another process calls it")
		b.stop()
		pass(usualTerm.Duration)
		a.calls("and has ended", "d")
		a.stop()
	})
}
