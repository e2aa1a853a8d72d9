package csi

import (
	"context"
	"slices"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

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
