package queue

import "time"

// Backoff bounds the pauses between tries: the first is Min, each is twice as
// long as the one before, and none is longer than Max.
type Backoff struct{ Min, Max time.Duration }

// Pause returns the pause after a try when so many tries before it have failed.
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
