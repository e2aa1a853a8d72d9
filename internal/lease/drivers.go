package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/volume"
)

// linger is how long the leases of a driver are kept that is no longer reached: it may be about to restart.
const linger = 10 * time.Second

// DriverLeads holds the leases of each driver whose controller this process reaches, so that only one process calls
// it: this one, that of another host, or upstream's sidecars. Node-local drivers have no leases: each host calls its
// own.
type DriverLeads struct {
	// Reached holds the drivers that this process reaches. Of several sets that have a controller of one name, the
	// first counts.
	Reached []*csi.Set
	// Called receives each driver for as long as this process may call it.
	Called *csi.Set
	// Homes says for which volumes of a driver this process calls it.
	Homes Homes
	// Locks returns the locks of the leases of a driver, in the order in which every process acquires them, and the
	// times of their elections. Shared is that of its Home.
	Locks func(driver string, shared bool) ([]WatchedLock, sidecar.Term)
	// Log receives what becomes of the leases.
	Log *slog.Logger

	mu sync.Mutex
	// candidates holds, by driver, the channel that wakes the goroutine that stands for its leases.
	candidates map[string]chan struct{}
	// changed wakes the candidate of a driver.
	changed func(name string)
}

// standaloneTerm is long, because where this process has died no API server is left by which another one could take
// its leases. It gives them back when it ends, and when it starts again after a crash it has the same identity. So many
// drivers cost few renewals.
func standaloneTerm() sidecar.Term {
	return sidecar.Term{Duration: 30 * time.Minute, Deadline: 25 * time.Minute, Retry: 12 * time.Minute}
}

// sharedTerm is that of drivers that more than one host may call. It is upstream's usual one for the first lease of a
// driver, without which the others do not count.
func sharedTerm() sidecar.Term {
	return sidecar.Term{
		Duration: 15 * time.Second, Deadline: 10 * time.Second, Retry: 5 * time.Second, LongOthers: true,
	}
}

// LeadDrivers holds the leases of the drivers that a standalone control plane reaches, until ctx ends. node is the
// name of its node, and config has the identity of LeasesRole.
func LeadDrivers(
	ctx context.Context, config *rest.Config, node string, reached []*csi.Set, called *csi.Set, log *slog.Logger,
) error {
	leads := &DriverLeads{Reached: reached, Called: called, Log: log}
	return leads.runAs(ctx, config, "volplane-up_"+node, func(d csiDrivers) Homes {
		return d.ofControlPlane(volume.Scope{Node: node, Rest: true}, true)
	})
}

// runAs is Run for a standalone control plane with an identity, whose configuration has that of LeasesRole.
func (l *DriverLeads) runAs(
	ctx context.Context, config *rest.Config, identity string, homes func(csiDrivers) Homes,
) error {
	config = kube.Restrict(config, LeasesRole, leadRights())
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of the leases: %w", err)
	}
	if l.Locks, err = driverLocks(config, identity); err != nil {
		return err
	}
	drivers, err := readCSIDrivers(ctx, client, l.Changed)
	if err != nil {
		return parts.UnlessEnded(ctx, err)
	}
	l.Homes = homes(drivers)
	return l.Run(ctx)
}

// driverLocks returns DriverLeads.Locks for a process of a standalone control plane. The configuration must allow to
// watch all leases of the namespace, which that of controllers beside one driver does not.
func driverLocks(
	config *rest.Config, identity string,
) (func(driver string, shared bool) ([]WatchedLock, sidecar.Term), error) {
	alone, err := newLeases(config, volume.NamespaceSystem, identity, standaloneTerm().Deadline)
	if err != nil {
		return nil, err
	}
	shared, err := newLeases(config, volume.NamespaceSystem, identity, sharedTerm().Deadline)
	if err != nil {
		return nil, err
	}
	alone.watched = newSharedWatch(alone.watched)
	shared.watched = alone.watched
	return func(driver string, isShared bool) ([]WatchedLock, sidecar.Term) {
		l, term := alone, standaloneTerm()
		if isShared {
			l, term = shared, sharedTerm()
		}
		return l.locks(leaseNames(DriverControllers(), driver)), term
	}, nil
}

// leadRights returns the rights that LeadDrivers and Shared need.
func leadRights() []kube.Access {
	return slices.Concat(leaseRights(volume.NamespaceSystem, nil), kube.Read("storage.k8s.io", "csidrivers"),
		kube.Read("", "nodes"), publishRights())
}

// Changed has Homes asked again about a driver.
func (l *DriverLeads) Changed(name string) {
	l.mu.Lock()
	changed := l.changed
	l.mu.Unlock()
	if changed != nil {
		changed(name)
	}
}

// Run holds leases until ctx ends, and gives them back then. No driver is called under them any more when it returns.
func (l *DriverLeads) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	wake := func(name string) { l.wake(ctx, &running, name) }
	l.mu.Lock()
	l.candidates, l.changed = map[string]chan struct{}{}, wake
	l.mu.Unlock()
	for _, set := range l.Reached {
		defer set.Subscribe(wake)()
		for _, name := range set.Names() {
			wake(name)
		}
	}
	<-ctx.Done()
	return nil
}

// wake has the driver of that name looked at again.
func (l *DriverLeads) wake(ctx context.Context, running *sync.WaitGroup, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	woken, stands := l.candidates[name]
	switch {
	case stands:
		select {
		case woken <- struct{}{}:
		default:
		}
	case ctx.Err() == nil && l.controller(name) != nil:
		woken = make(chan struct{}, 1)
		l.candidates[name] = woken
		running.Go(func() {
			for next := true; next; {
				err := l.stand(ctx, name, woken)
				if err != nil {
					l.Log.Error("the leases of a driver cannot be held", "driver", name, "err", err)
				}
				next = l.retire(ctx, name) && err == nil
			}
		})
	}
}

// retire ends the candidate of a driver, unless the driver has come back.
func (l *DriverLeads) retire(ctx context.Context, name string) (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() == nil && l.controller(name) != nil {
		return true
	}
	delete(l.candidates, name)
	return false
}

// controller returns the driver of that name behind whose socket is its controller; nil if none is reached, or if it is
// not called from here.
func (l *DriverLeads) controller(name string) *csi.Driver {
	if _, calls := l.Homes(name); !calls {
		return nil
	}
	for _, set := range l.Reached {
		if d, ok := set.Get(name); ok && d.HasController {
			return d
		}
	}
	return nil
}

// stand acquires the leases of a driver, and calls it while it holds them, until the driver has gone.
func (l *DriverLeads) stand(ctx context.Context, name string, woken <-chan struct{}) error {
	home, _ := l.Homes(name)
	var locks []WatchedLock
	var term sidecar.Term
	if home.Scope.Node == "" {
		locks, term = l.Locks(name, home.Shared)
	}
	there, leave := context.WithCancel(ctx)
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer leave()
	watching.Go(func() {
		defer leave()
		l.whileThere(there, name, home, woken, changed)
	})
	leadership := new(Leadership)
	return leadership.Lead(there, locks, term, l.Log.With("driver", name), func(held context.Context) error {
		l.call(held, leadership.certain, name, home.Scope, changed)
		return nil
	})
}

// whileThere returns when ctx ends, when the driver has another home, or when it has not been reached for as long as
// linger.
func (l *DriverLeads) whileThere(
	ctx context.Context, name string, home Home, woken <-chan struct{}, changed chan<- struct{},
) {
	gone := time.NewTimer(linger)
	defer gone.Stop()
	for {
		if now, calls := l.Homes(name); !calls || now != home {
			return
		}
		if l.controller(name) != nil {
			gone.Stop()
		} else {
			gone.Reset(linger)
		}
		select {
		case changed <- struct{}{}:
		default:
		}
		select {
		case <-ctx.Done():
			return
		case <-gone.C:
			return
		case <-woken:
		}
	}
}

// call puts the driver in the set of those that are called, whenever it is reached, until the term ends.
func (l *DriverLeads) call(
	term context.Context, certain func() bool, name string, scope volume.Scope, changed <-chan struct{},
) {
	var now, within *csi.Driver
	for {
		d := l.controller(name)
		switch d {
		case now:
		case nil:
			l.Called.Remove(within)
		default:
			within = d.Within(term, certain).In(scope)
			l.Called.Put(within)
		}
		now = d
		select {
		case <-term.Done():
			if now != nil {
				l.Called.Remove(within)
			}
			return
		case <-changed:
		}
	}
}
