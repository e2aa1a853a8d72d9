package queue

import "time"

// Backoff bounds the pauses after failures: the first is Min, each following one is twice as long,
// and none is longer than Max.
type Backoff struct{ Min, Max time.Duration }

// Pause returns the pause after a failure that follows a number of earlier failures.
func (b Backoff) Pause(failures int) time.Duration {
	d := b.Min
	for range failures {
		if d >= b.Max/2 {
			return b.Max
		}
		d *= 2
	}
	return min(d, b.Max)
}
