package flex_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/testkit/golden"
)

// play returns when inits begin, given when signals come, how long each init
// takes, and which of them fail ("x"); after the last letter all are well.
func play(signals []time.Duration, init time.Duration, outcomes string, until time.Duration) []time.Duration {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var (
		s      flex.Schedule
		begun  []time.Duration
		now    = start
		next   int
		expect = func(at time.Time) bool { return at.Sub(start) <= until }
	)
	for {
		at, due := s.Due()
		if at.Before(now) {
			at = now
		}
		if next < len(signals) && (!due || !start.Add(signals[next]).After(at)) {
			now = later(now, start.Add(signals[next]))
			s = s.Signal()
			next++
			continue
		}
		if !due || !expect(at) {
			return begun
		}
		begun = append(begun, at.Sub(start))
		s, now = s.Begin(), at.Add(init)
		for next < len(signals) && !start.Add(signals[next]).After(now) {
			s = s.Signal()
			next++
		}
		ok := len(begun) > len(outcomes) || outcomes[len(begun)-1] != 'x'
		s = s.End(now, ok)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func TestSchedule(t *testing.T) {
	const ms = time.Millisecond
	every := func(pause, until time.Duration) (all []time.Duration) {
		for at := time.Duration(0); at < until; at += pause {
			all = append(all, at)
		}
		return all
	}
	var out strings.Builder
	for _, c := range []struct {
		argues   string
		signals  []time.Duration
		init     time.Duration
		outcomes string
		until    time.Duration
	}{
		{"the first signal is acted on at once", []time.Duration{0}, 5 * ms, "", time.Hour},
		{"without a signal nothing is done", nil, 5 * ms, "", time.Hour},
		{"a signal after a quiet second too", []time.Duration{0, 1500 * ms}, 5 * ms, "", time.Hour},
		{"a signal within the second waits for its end", []time.Duration{0, 200 * ms}, 5 * ms, "", time.Hour},
		{"any number of them are one", []time.Duration{0, 200 * ms, 300 * ms, 900 * ms}, 5 * ms, "", time.Hour},
		{"1,000 changes in 2 s are 3 inits, the last one after the last change", every(2*ms, 2000*ms), 5 * ms, "", time.Hour},
		{"a change while init runs is seen by the next", []time.Duration{0, 3 * ms}, 5 * ms, "", time.Hour},
		{"a slow init delays the next by what it takes", []time.Duration{0, 3 * ms}, 3000 * ms, "", time.Hour},
		{"a driver that fails is tried again, ever less often", []time.Duration{0}, 0, "xxxxxxxxxxxxxxxxxxxx", 30 *
			time.Minute},
		{"one that heals is left alone", []time.Duration{0}, 5 * ms, "xx", time.Hour},
		{"a change is tried at once, however often it failed before", []time.Duration{0, 20 * time.Second}, 0, "xxxxx", 25 *
			time.Second},
		{"and begins to count anew", []time.Duration{0, 20 * time.Second}, 0, "xxxxxxx", 25 * time.Second},
		{"a signal within a second of a failure waits as after success", []time.Duration{0, 500 * ms}, 0, "x", time.Hour},
		{"a change during an init that fails is no retry", []time.Duration{0, 3 * ms}, 5 * ms, "xx", time.Hour},
	} {
		fmt.Fprintf(&out, "# %s\n", c.argues)
		if n := len(c.signals); n > 8 {
			fmt.Fprintf(&out, "signals=%v..%v (%d)", c.signals[0], c.signals[n-1], n)
		} else {
			fmt.Fprintf(&out, "signals=%v", c.signals)
		}
		fmt.Fprintf(&out, " init=%v outcomes=%q\n----\n%v\n\n", c.init, c.outcomes,
			play(c.signals, c.init, c.outcomes, c.until))
	}
	golden.Equal(t, "testdata/schedule.txt", out.String())
}

// TestClearedScheduleKeepsTheGap: a driver that goes and comes back within the
// second is no new one.
func TestClearedScheduleKeepsTheGap(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := flex.Schedule{}.Signal().Begin().End(now, false).Clear()
	if at, due := s.Due(); due {
		t.Fatalf("after a removal an init is due at %v", at)
	}
	if at, due := s.Signal().Due(); !due || at != now.Add(flex.ProbeGap) {
		t.Fatalf("due at %v, %v", at, due)
	}
}
