package flex

import "time"

// How often the init of one driver may run.
const (
	// ProbeGap lies at least between the end of one init and the begin of the
	// next, however often the driver's files change (F-043, F-053).
	ProbeGap = time.Second
	// RetryMax bounds the pause after an init that failed. The first is
	// ProbeGap, and each is twice the one before.
	RetryMax = 5 * time.Minute
)

// Schedule says when the next init of one driver is due. It is a value: each
// method returns the schedule that follows. The zero Schedule waits for a
// signal, and the first is acted on at once.
type Schedule struct {
	// Signalled says that the driver changed since its last init began.
	Signalled bool
	// Ended is when its last init ended; zero before the first.
	Ended time.Time
	// Failures counts the inits that failed since the last change.
	Failures int
}

// Signal notes that the driver has changed. Any number of signals before the
// next init count as one.
func (s Schedule) Signal() Schedule {
	s.Signalled = true
	return s
}

// Clear forgets what is due: there is nothing to init any more.
func (s Schedule) Clear() Schedule {
	return Schedule{Ended: s.Ended}
}

// Due returns when the next init shall begin, which may be in the past, and
// false where nothing is due before the next signal.
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

// Begin starts an init, which sees all that changed before.
func (s Schedule) Begin() Schedule {
	if s.Signalled {
		s.Failures = 0
	}
	s.Signalled = false
	return s
}

// End notes when and how an init ended.
func (s Schedule) End(now time.Time, ok bool) Schedule {
	s.Ended = now
	if ok {
		s.Failures = 0
	} else {
		s.Failures++
	}
	return s
}

// pause returns how long to wait after so many failures in a row.
func pause(failures int) time.Duration {
	d := ProbeGap
	for range failures - 1 {
		if d *= 2; d >= RetryMax {
			return RetryMax
		}
	}
	return d
}
