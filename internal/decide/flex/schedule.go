package flex

import "time"

// Limits of how often init of one driver is called.
const (
	// ProbeGap is the shortest time between the end of one init and the start of the next, however
	// often the driver's files change (F-043, F-053).
	ProbeGap = time.Second
	// RetryMax is the longest delay of the back-off after failures of init. It starts at ProbeGap
	// and doubles.
	RetryMax = 5 * time.Minute
)

// Schedule says when init of one driver is due next. It is a value: each method returns the
// following schedule. The zero value waits for a signal, and acts on the first one at once.
type Schedule struct {
	// Signalled says that the driver has changed since its last init began.
	Signalled bool
	// Ended is the end of the last init; zero before the first.
	Ended time.Time
	// Failures is the number of failed inits since the last change.
	Failures int
}

// Signal records that the driver has changed. Several signals before the next init count as one.
func (s Schedule) Signal() Schedule {
	s.Signalled = true
	return s
}

// Clear cancels what is due, because the driver was removed.
func (s Schedule) Clear() Schedule {
	return Schedule{Ended: s.Ended}
}

// Due returns when the next init is due, which may be in the past; false if none is due before the
// next signal.
func (s Schedule) Due() (time.Time, bool) {
	switch {
	case s.Signalled && s.Ended.IsZero():
		return time.Time{}, true
	case s.Signalled:
		return s.Ended.Add(ProbeGap), true
	case s.Failures > 0:
		return s.Ended.Add(pause(s.Failures)), true
	}
	return time.Time{}, false
}

// Begin records the start of an init, which covers all changes before it.
func (s Schedule) Begin() Schedule {
	if s.Signalled {
		s.Failures = 0
	}
	s.Signalled = false
	return s
}

// End records the end of an init.
func (s Schedule) End(now time.Time, ok bool) Schedule {
	s.Ended = now
	if ok {
		s.Failures = 0
	} else {
		s.Failures++
	}
	return s
}

// pause returns the delay after a number of consecutive failures.
func pause(failures int) time.Duration {
	d := ProbeGap
	for range failures - 1 {
		if d *= 2; d >= RetryMax {
			return RetryMax
		}
	}
	return d
}
