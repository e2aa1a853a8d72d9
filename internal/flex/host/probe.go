package host

import (
	"context"
	"errors"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
)

// outcome is the result of a probe.
type outcome int

const (
	// skipped: there is no executable, or it must not be executed.
	skipped outcome = iota
	failed
	succeeded
)

// pace calls probe according to the schedule of a driver, until ctx ends.
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
		case skipped:
			s = s.Clear()
		case failed:
			s = s.End(time.Now(), false)
		case succeeded:
			s = s.End(time.Now(), true)
		}
	}
}

// probe calls init of the driver in a slot and stores the result.
func (h *Host) probe(ctx context.Context, s *slot) outcome {
	h.mu.Lock()
	c := s.found
	h.mu.Unlock()
	if c == nil {
		return skipped
	}
	d, err := driver.Probe(ctx, c.name, c.path, h.options(s))
	if ctx.Err() != nil {
		return skipped
	}
	var copied *driver.Driver
	if err == nil {
		if copied, err = h.keep(d, h.options(s)); err != nil {
			h.Log.Warn("FlexVolume driver cannot be kept for unmounting", "driver", s.label, "err", err)
			err = nil
		}
	}
	h.change(s.dir, func(now *slot) {
		if now != s || s.found == nil {
			return // the executable has since been removed, or must no longer be executed
		}
		s.probed, s.ready, s.failure = true, nil, ""
		if err != nil {
			s.failure = reasonOf(err)
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
	h.commitKept(s, copied)
	return succeeded
}

func (h *Host) options(s *slot) driver.Options {
	var o driver.Options
	if h.Options != nil {
		o = h.Options(s.name)
	}
	o.Calls, o.Traces = &s.calls, h.tracesDir(s.dir)
	return o
}

// reasonOf returns the text of an error of Probe without the driver's name, which the reader knows.
func reasonOf(err error) string {
	var failed *driver.CallError
	if errors.As(err, &failed) {
		return failed.Message
	}
	return err.Error()
}
