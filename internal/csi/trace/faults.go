package trace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

// faults has the planted faults of each driver. It is safe for concurrent use.
type faults struct {
	mu      sync.Mutex
	drivers map[string]*planted
	// roll returns a number in [0,100).
	roll func() float64
}

// planted are the faults of one driver.
type planted struct {
	faults []armed
	until  time.Time
	// cleared is closed when they end.
	cleared chan struct{}
	timer   *time.Timer
}

// armed is a fault with the number of calls that it has met.
type armed struct {
	Fault
	hits int
}

// Planted is a planted fault as commands show it.
type Planted struct {
	Driver string `json:"driver"`
	// Fault is the fault as it was planted.
	Fault string `json:"fault"`
	// Hits is how many calls it has met.
	Hits  int       `json:"hits"`
	Until time.Time `json:"until"`
}

func newFaults() *faults {
	return &faults{drivers: map[string]*planted{}, roll: func() float64 {
		return 100 * rand.Float64() //nolint:gosec // which calls fail is not secret
	}}
}

// plant replaces the faults of a driver; without any, it clears them.
func (s *faults) plant(driver string, wanted []Fault, life time.Duration) error {
	if len(wanted) > 0 && (life <= 0 || life > MaxFor) {
		return fmt.Errorf("faults cannot be planted for %s: want a time of at most %s", life, MaxFor)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear(driver)
	if len(wanted) == 0 {
		return nil
	}
	if len(s.drivers) >= maxDrivers {
		return errors.New("too many drivers have planted faults: clear some of them")
	}
	p := &planted{until: time.Now().Add(life), cleared: make(chan struct{})}
	for _, f := range wanted {
		p.faults = append(p.faults, armed{Fault: f})
	}
	p.timer = time.AfterFunc(life, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.drivers[driver] == p {
			s.clear(driver)
		}
	})
	s.drivers[driver] = p
	return nil
}

func (s *faults) clear(driver string) {
	if p := s.drivers[driver]; p != nil {
		close(p.cleared)
		p.timer.Stop()
		delete(s.drivers, driver)
	}
}

// list returns the faults of one driver.
func (s *faults) list(driver string) []Planted {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Planted
	if p := s.drivers[driver]; p != nil {
		for _, f := range p.faults {
			out = append(out, Planted{driver, f.String(), f.hits, p.until.UTC().Truncate(time.Second)})
		}
	}
	return out
}

// names returns the drivers that have faults.
func (s *faults) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.drivers))
}

// next returns the fault of a call, a channel that closes when the driver's faults are cleared, and the fault as text;
// nil if the call has none.
func (s *faults) next(driver, method string) (f *Fault, cleared <-chan struct{}, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.drivers[driver]
	if p == nil || !time.Now().Before(p.until) {
		return nil, nil, ""
	}
	for i := range p.faults {
		f := &p.faults[i]
		if !f.meets(method) || f.Times > 0 && f.hits >= f.Times || f.Percent > 0 && s.roll() >= f.Percent {
			continue
		}
		f.hits++
		meets := f.Fault
		return &meets, p.cleared, fmt.Sprintf("%s, until %s; 'volplane driver faults %s --clear' ends it", f, stamp(p.until),
			driver)
	}
	return nil, nil, ""
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// call makes a call, or makes it fail as a fault says.
func (s *faults) call(ctx context.Context, driver, method string, call func() error) error {
	f, cleared, text := s.next(driver, method)
	if f == nil {
		return call()
	}
	switch {
	case f.Lost:
		_ = call() // the caller never sees the result
	case f.Hang:
		return hang(ctx, f.Wait, cleared, text)
	}
	return csi.Planted(f.Code, text)
}

// hang waits as one does for a driver that does not answer.
func hang(ctx context.Context, wait time.Duration, cleared <-chan struct{}, text string) error {
	var over <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
	case <-cleared:
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			return csi.Planted(codes.Canceled, text)
		}
	}
	return csi.Planted(codes.DeadlineExceeded, text)
}
