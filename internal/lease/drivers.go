package lease

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/planes"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/sidecar"
)

// releaseDelay is how long the leases of a driver that is no longer reached are kept: it may be about to restart.
const releaseDelay = 10 * time.Second

// Drivers holds the leases of each driver whose controller this process reaches, so that only one process calls it:
// this one, that of another host, or upstream's sidecars. Node-local drivers have no leases: each host calls its own.
type Drivers struct {
	// Reached holds the drivers that this process reaches. Of several sets that have a controller of one name, the
	// first counts.
	Reached []*csi.Set
	// Called receives each driver for as long as this process may call it.
	Called *csi.Set
	// Objects is the client that reads the CSIDrivers, whose annotations Assign is given.
	Objects kubernetes.Interface
	// Assign says for which volumes of a driver this process calls it.
	Assign func(annotations map[string]string) planes.Assignment
	// Leases are those of the drivers, and Names returns the names of a driver's, in the order in which every process
	// acquires them.
	Leases *Client
	Names  func(driver string) []string
	// Log receives what becomes of the leases.
	Log *slog.Logger

	objects *kube.Cache[*storagev1.CSIDriver]
	running sync.WaitGroup

	mu         sync.Mutex
	candidates map[string]*driverCandidate
	// ended says that no further candidate may start.
	ended bool
}

// driverCandidate is this process as a candidate for the leases of a driver.
type driverCandidate struct {
	assignment planes.Assignment
	// end ends the candidate, and lingers does so for a driver that is no longer reached; nil if it is.
	end     context.CancelFunc
	lingers *time.Timer
	// within returns a driver as it may be called while the leases are held; nil if they are not.
	within func(*csi.Driver) *csi.Driver
	// reached is the driver that is called, and called the same within; nil if none is.
	reached, called *csi.Driver
}

// aloneTerm is long, because where this process has died no API server is left by which another one could take its
// leases. It gives them back when it ends, and the one that has its objects after a crash takes them immediately, here
// or where they were moved or restored to; see Client.Former. So many drivers cost few renewals.
func aloneTerm() sidecar.Term {
	return sidecar.Term{Duration: 30 * time.Minute, Deadline: 25 * time.Minute, Retry: 12 * time.Minute}
}

// SharedTerm is that of drivers that more than one host may call. It is upstream's usual one for the first lease of a
// driver, without which the others do not count.
func SharedTerm() sidecar.Term {
	return sidecar.Term{
		Duration: 15 * time.Second, Deadline: 10 * time.Second, Retry: 5 * time.Second, LongOthers: true,
	}
}

// Run holds leases until ctx ends, and gives them back then. No driver is called under them any more when it returns.
func (d *Drivers) Run(ctx context.Context) error {
	defer d.running.Wait()
	defer d.end()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d.candidates = map[string]*driverCandidate{}
	look := func(name string) { d.look(ctx, name) }
	caches := kube.NewCaches(d.Objects)
	d.objects = caches.CSIDrivers()
	d.objects.Watch(func(before, after *storagev1.CSIDriver) {
		after = cmp.Or(after, before)
		look(after.Name)
	})
	if err := caches.Start(ctx); err != nil {
		return lifecycle.UnlessEnded(ctx, fmt.Errorf("read CSIDrivers: %w", err))
	}
	for _, set := range d.Reached {
		defer set.Subscribe(look)()
		for _, name := range set.Names() {
			look(name)
		}
	}
	<-ctx.Done()
	return nil
}

// end has no further candidate start.
func (d *Drivers) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
}

// controller returns the driver of that name behind whose socket is its controller, and what this process does for it.
// The driver is nil if none is reached, or if this process does not call it.
func (d *Drivers) controller(name string) (*csi.Driver, planes.Assignment) {
	var annotations map[string]string
	if o, ok := d.objects.Get(name); ok {
		annotations = o.Annotations
	}
	assignment := d.Assign(annotations)
	for _, set := range d.Reached {
		if driver, ok := set.Get(name); ok && driver.HasController && assignment.Calls {
			return driver, assignment
		}
	}
	return nil, assignment
}

// look compares the driver of that name with its candidate, and starts or ends it.
func (d *Drivers) look(ctx context.Context, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	driver, assignment := d.controller(name)
	c, stands := d.candidates[name]
	if !stands {
		if driver != nil && !d.ended {
			d.start(ctx, name, assignment)
		}
		return
	}
	switch {
	case assignment != c.assignment:
		c.end()
	case driver == nil && c.lingers == nil:
		c.lingers = time.AfterFunc(releaseDelay, c.end)
	case driver != nil && c.lingers != nil:
		c.lingers.Stop()
		c.lingers = nil
	}
	d.call(c, driver)
}

// start starts the candidate for the leases of a driver; d.mu is held.
func (d *Drivers) start(ctx context.Context, name string, assignment planes.Assignment) {
	own, end := context.WithCancel(ctx)
	c := &driverCandidate{assignment: assignment, end: end}
	d.candidates[name] = c
	d.running.Go(func() {
		defer end()
		if err := d.stand(own, name, c); err != nil {
			d.Log.Error("the leases of a driver cannot be held", "driver", name, "err", err)
			return
		}
		d.mu.Lock()
		delete(d.candidates, name)
		d.mu.Unlock()
		// The driver may be there again, or be assigned in another way.
		d.look(ctx, name)
	})
}

// stand acquires the leases of a driver, and has it called while it holds them, until ctx ends.
func (d *Drivers) stand(ctx context.Context, name string, c *driverCandidate) (err error) {
	candidate, term := &Candidate{}, aloneTerm()
	if c.assignment.Shared {
		term = SharedTerm()
	}
	if c.assignment.Scope.Node == "" {
		if candidate, err = d.Leases.Candidate(d.Names(name), term, d.Log.With("driver", name)); err != nil {
			return err
		}
	}
	return candidate.Run(ctx, func(held context.Context) error {
		d.during(name, c, func(driver *csi.Driver) *csi.Driver {
			return driver.Within(held, candidate.certain).In(c.assignment.Scope)
		})
		<-held.Done()
		d.during(name, c, nil)
		return nil
	})
}

// during begins the term in which a driver may be called, or ends it if within is nil.
func (d *Drivers) during(name string, c *driverCandidate, within func(*csi.Driver) *csi.Driver) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.within = within
	driver, _ := d.controller(name)
	d.call(c, driver)
}

// call has a driver called instead of the one before, nil for none, while the leases are held; d.mu is held.
func (d *Drivers) call(c *driverCandidate, driver *csi.Driver) {
	if c.within == nil {
		driver = nil
	}
	switch driver {
	case c.reached:
	case nil:
		d.Called.Remove(c.called)
	default:
		c.called = c.within(driver)
		d.Called.Put(c.called)
	}
	c.reached = driver
}
