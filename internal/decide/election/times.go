package election

import (
	"errors"
	"time"
)

// Times are those of one lease.
type Times struct {
	// Duration is how long other processes wait after the holder's last renewal.
	Duration time.Duration
	// Deadline is how long after its last renewal the holder works.
	Deadline time.Duration
	// Renew is how long after a renewal the next one begins.
	Renew time.Duration
	// Retry is the interval of attempts to acquire, and the longest one of attempts to renew after a failure.
	Retry time.Duration
}

// LongDuration is how long upstream's sidecars wait for the leases of a leader that was killed, but for the first one.
// A person who goes back to them in such a moment waits for no longer.
const LongDuration = 2 * time.Minute

// First returns the times of the only lease of a process, or of its first one. It is renewed at a time after the retry
// period that leaves room for a few attempts before the deadline. As with client-go, these must have an order.
func First(duration, deadline, retry time.Duration) (Times, error) {
	// A lease records whole seconds.
	duration = duration.Truncate(time.Second)
	switch {
	case retry <= 0:
		return Times{}, errors.New("the retry period of the leader election must be greater than zero")
	case deadline <= retry+retry/5:
		return Times{}, errors.New("the renew deadline of the leader election must be greater than 1.2 retry periods")
	case duration <= deadline:
		return Times{}, errors.New("the lease duration of the leader election must be greater than the renew deadline")
	case duration < time.Second:
		return Times{}, errors.New("the lease duration of the leader election must be a second or more")
	}
	return Times{Duration: duration, Deadline: deadline, Renew: retry + (deadline-retry)*2/5, Retry: retry}, nil
}

// Other returns the times of the other leases of a process with that first one. Their deadline leaves as much time for
// the end of the work as the first one's, or more.
func Other(first Times) Times {
	end := first.Duration - first.Deadline
	if LongDuration <= first.Duration || LongDuration/4 <= end {
		return first
	}
	deadline := LongDuration - max(end, LongDuration/12)
	return Times{Duration: LongDuration, Deadline: deadline, Renew: LongDuration / 4 * 3, Retry: first.Retry}
}

// Again returns how long after a failed renewal the next attempt begins, when the deadline is that far.
func (t Times) Again(left time.Duration) time.Duration {
	return min(t.Retry, max(left/4, 100*time.Millisecond))
}

// Limit returns the time limit of one request, so that there is time for another one before the deadline.
func (t Times) Limit(left time.Duration) time.Duration {
	return max(min(left, t.Deadline)/2, 100*time.Millisecond)
}
