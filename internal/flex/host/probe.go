package host

import (
	"context"
	"errors"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
)

// outcome is how a probe ended.
type outcome int

const (
	// vain is a probe of nothing: the executable is gone, or must not run.
	vain outcome = iota
	failed
	well
)

// pace calls probe whenever the schedule of a driver says so, until ctx ends.
func pace(ctx context.Context, signals <-chan struct{}, probe func(context.Context) outcome) {
	var s decide.Schedule
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Stop()
		if at, due := s.Due(); due {
			timer.Reset(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return
		case <-signals:
			s = s.Signal()
			continue
		case <-timer.C:
		}
		s = s.Begin()
		switch probe(ctx) {
		case vain:
			s = s.Clear()
		case failed:
			s = s.End(time.Now(), false)
		case well:
			s = s.End(time.Now(), true)
		}
	}
}

// probe calls init of the driver in a slot and notes what it said.
func (h *Host) probe(ctx context.Context, s *slot) outcome {
	h.mu.Lock()
	c := s.seen
	h.mu.Unlock()
	if c == nil {
		return vain
	}
	d, err := driver.Probe(ctx, c.name, c.path, h.options(s))
	if ctx.Err() != nil {
		return vain
	}
	var copied *driver.Driver
	if err == nil {
		if copied, err = h.keep(d, h.options(s)); err != nil {
			h.Log.Warn("FlexVolume driver cannot be kept for unmounting", "driver", s.label, "err", err)
			err = nil
		}
	}
	h.change(s.dir, func(now *slot) {
		if now != s || s.seen == nil {
			return // it is gone by now, or must not run any more
		}
		s.probed, s.ready, s.failure = true, nil, ""
		if err != nil {
			s.failure = words(err)
			return
		}
		s.ready = d
		if copied != nil {
			s.kept = copied
		}
	})
	if err != nil {
		return failed
	}
	h.settle(s, copied)
	return well
}

func (h *Host) options(s *slot) driver.Options {
	var o driver.Options
	if h.Options != nil {
		o = h.Options(s.name)
	}
	o.Calls, o.Traces = &s.calls, h.tracesDir(s.dir)
	return o
}

// words returns what an error of Probe says without what its reader knows.
func words(err error) string {
	var failed *driver.CallError
	if errors.As(err, &failed) {
		return failed.Message
	}
	return err.Error()
}
