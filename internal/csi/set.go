package csi

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// Set holds the drivers that a process can call: the node agent adds those that register, and
// controllers look them up by name. It is safe for concurrent use.
type Set struct {
	mu          sync.Mutex
	drivers     map[string]*Driver
	subscribers []*func(name string)
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{drivers: map[string]*Driver{}} }

// Put adds a driver, or replaces the one with the same name, and notifies the subscribers.
func (s *Set) Put(d *Driver) {
	s.mu.Lock()
	s.drivers[d.Name] = d
	subscribers := slices.Clone(s.subscribers)
	s.mu.Unlock()
	for _, f := range subscribers {
		(*f)(d.Name)
	}
}

// Remove removes a driver, unless another one has replaced it, and notifies the subscribers. It may be repeated.
func (s *Set) Remove(d *Driver) {
	s.mu.Lock()
	var subscribers []*func(name string)
	if s.drivers[d.Name] == d {
		delete(s.drivers, d.Name)
		subscribers = slices.Clone(s.subscribers)
	}
	s.mu.Unlock()
	for _, f := range subscribers {
		(*f)(d.Name)
	}
}

// Get returns the driver with the name.
func (s *Set) Get(name string) (*Driver, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.drivers[name]
	return d, ok
}

// For returns the driver with the name if the process calls it for the volumes of a node; an empty node means those
// that belong to none.
func (s *Set) For(name, node string) (*Driver, bool) {
	d, ok := s.Get(name)
	return d, ok && d.Scope.Has(node)
}

// Names returns the names of all drivers, sorted.
func (s *Set) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.drivers))
}

// Subscribe calls f with the name of each driver that is put or removed after this call, until cancel is called. f must
// not block.
func (s *Set) Subscribe(f func(name string)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers = append(s.subscribers, &f)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.subscribers = slices.DeleteFunc(s.subscribers, func(known *func(name string)) bool { return known == &f })
	}
}

// followPause is the shortest interval between two attempts to reach a lost driver, and between two
// notifications about one driver.
const followPause = time.Second

// Follow notifies the subscribers whenever a driver of the set answers after its connection was lost, which lets failed
// calls be retried immediately instead of after their back-off. It returns when ctx ends, and its goroutines end then,
// too.
func (s *Set) Follow(ctx context.Context) {
	var followed sync.Map
	start := func(name string) {
		d, ok := s.Get(name)
		if !ok || ctx.Err() != nil {
			return
		}
		if _, known := followed.LoadOrStore(d, nil); known {
			return
		}
		made := d.link.connections.Load()
		go func() {
			defer followed.Delete(d)
			s.follow(ctx, d, made)
		}()
	}
	defer s.Subscribe(start)()
	for _, name := range s.Names() {
		start(name)
	}
	<-ctx.Done()
}

// follow watches one driver until it leaves the set or ctx ends. told is the number of connections
// that had been made to the driver when subscribers were last notified.
func (s *Set) follow(ctx context.Context, d *Driver, told int64) {
	for s.has(d) && ctx.Err() == nil {
		d.link.awaitLossOf(ctx, told)
		pause, cancel := context.WithTimeout(ctx, followPause)
		// Only a call makes a connection.
		_, err := d.IdentityClient().GetPluginInfo(pause, &csipb.GetPluginInfoRequest{})
		if now := d.link.connections.Load(); err == nil && now != told {
			told = now
			s.notifyAgain(d)
		}
		<-pause.Done()
		cancel()
	}
}

func (s *Set) has(d *Driver) bool {
	now, ok := s.Get(d.Name)
	return ok && now == d
}

// notifyAgain notifies the subscribers of a driver if it is still in the set.
func (s *Set) notifyAgain(d *Driver) {
	s.mu.Lock()
	subscribers := slices.Clone(s.subscribers)
	if s.drivers[d.Name] != d {
		subscribers = nil
	}
	s.mu.Unlock()
	for _, f := range subscribers {
		(*f)(d.Name)
	}
}
