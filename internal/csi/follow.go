package csi

import (
	"context"
	"slices"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// followPause bounds how often a driver that is lost is looked for, and how
// often one that comes and goes is told.
const followPause = time.Second

// Follow has the subscribers told of a driver again whenever it answers after
// its connection was lost, so that what failed meanwhile is tried at once and not
// after a pause. It returns when ctx ends, and what it has begun ends then.
func (s *Set) Follow(ctx context.Context) {
	var followed sync.Map
	begin := func(name string) {
		d, ok := s.Get(name)
		if !ok || ctx.Err() != nil {
			return
		}
		if _, known := followed.LoadOrStore(d, nil); known {
			return
		}
		made := d.link.made.Load()
		go func() {
			defer followed.Delete(d)
			s.follow(ctx, d, made)
		}()
	}
	defer s.Subscribe(begin)()
	for _, name := range s.Names() {
		begin(name)
	}
	<-ctx.Done()
}

// follow returns when the driver is not in the set any more, or ctx ends. told is
// how many connections to it there have been when it was told last.
func (s *Set) follow(ctx context.Context, d *Driver, told int64) {
	for s.has(d) && ctx.Err() == nil {
		d.link.ended(ctx, told)
		pause, cancel := context.WithTimeout(ctx, followPause)
		// A connection is made by a call only.
		_, err := d.IdentityClient().GetPluginInfo(pause, &csipb.GetPluginInfoRequest{})
		if now := d.link.made.Load(); err == nil && now != told {
			told = now
			s.again(d)
		}
		<-pause.Done()
		cancel()
	}
}

func (s *Set) has(d *Driver) bool {
	now, ok := s.Get(d.Name)
	return ok && now == d
}

// again tells of a driver that is still in the set.
func (s *Set) again(d *Driver) {
	s.mu.Lock()
	told := slices.Clone(s.told)
	if s.drivers[d.Name] != d {
		told = nil
	}
	s.mu.Unlock()
	for _, f := range told {
		(*f)(d.Name)
	}
}
