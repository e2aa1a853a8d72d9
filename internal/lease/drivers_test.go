package lease

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/planes"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// caller is a process that calls drivers.
type caller struct {
	t               *testing.T
	reached, called *csi.Set
	stop            func()
}

// newCaller starts a process that calls drivers as a host does. Its leases are those of one role.
func newCaller(t *testing.T, client kubernetes.Interface, identity string) *caller {
	c := &caller{t: t, reached: csi.NewSet(), called: csi.NewSet()}
	drivers := &Drivers{
		Reached: []*csi.Set{c.reached}, Called: c.called, Objects: client, Log: slog.New(slog.DiscardHandler),
		Assign: func(driver map[string]string) planes.Assignment { return planes.OfHost(driver, identity) },
		Leases: newClient(client.CoordinationV1().Leases("default"), "default", identity, nil),
		Names:  func(driver string) []string { return []string{driver, "attacher-" + driver} },
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- drivers.Run(ctx) }()
	c.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return c
}

// object writes the CSIDriver of a driver, whose controllers run where the annotation says.
func object(t *testing.T, client kubernetes.Interface, driver, controllers string) {
	t.Helper()
	o := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{
		Name: driver, Annotations: map[string]string{volume.AnnControllers: controllers},
	}}
	all := client.StorageV1().CSIDrivers()
	_, err := all.Update(t.Context(), o, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = all.Create(t.Context(), o, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
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

// TestOneCalls: of two processes that reach a driver one calls it, under the leases of the driver.
func TestOneCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		d := csitest.InMemory(t, csitest.Full())
		object(t, client, d.Name(), volume.Delegation([]string{"a", "b"}))
		a := newCaller(t, client, "a")
		a.calls("nothing is reached")
		a.reached.Put(d.Dial())
		pass(time.Second)
		a.calls("the only one", d.Name())
		for _, name := range []string{d.Name(), "attacher-" + d.Name()} {
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
		pass(time.Second)
		b.calls("no other calls it", d.Name())
		b.stop()
	})
}

// TestAssigned: a process calls a driver for the volumes that its CSIDriver says, and as soon as it says so.
func TestAssigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		a, b := newCaller(t, client, "a"), newCaller(t, client, "b")
		for _, c := range []*caller{a, b} {
			c.reached.Put(&csi.Driver{Name: "d", HasController: true})
			pass(time.Minute)
			c.calls("without an object")
		}
		object(t, client, "d", volume.Delegation([]string{"a"}))
		pass(time.Second)
		a.calls("it is delegated to the one", "d")
		b.calls("it is delegated to the other")
		object(t, client, "d", volume.Delegation([]string{"b"}))
		pass(time.Second)
		a.calls("it is not delegated any more")
		b.calls("it is delegated now", "d")
		object(t, client, "d", volume.ControllersOnNodes)
		pass(time.Second)
		for name, c := range map[string]*caller{"a": a, "b": b} {
			c.calls("it is node-local", "d")
			if d, _ := c.called.Get("d"); d != nil && (d.Scope.Node != name || d.Scope.Rest) {
				t.Errorf("%s calls it for %+v", name, d.Scope)
			}
			c.stop()
		}
	})
}

// TestControllerHalf: a node's socket is never called as a controller, and a controller's wherever it comes from.
func TestControllerHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		object(t, client, "d", volume.Delegation([]string{"a"}))
		c := newCaller(t, client, "a")
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
		client := clientset.New()
		object(t, client, "d", volume.Delegation([]string{"a", "b"}))
		here := &csi.Driver{Name: "d", HasController: true}
		a, b := newCaller(t, client, "a"), newCaller(t, client, "b")
		a.reached.Put(here)
		pass(time.Second)
		b.reached.Put(&csi.Driver{Name: "d", HasController: true})
		pass(time.Minute)
		a.reached.Remove(here)
		pass(releaseDelay - time.Second)
		b.calls("it may come back")
		a.reached.Put(here)
		pass(time.Minute)
		a.calls("it has come back", "d")
		a.reached.Remove(here)
		pass(releaseDelay + usualTerm.Retry + 2*time.Second)
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
