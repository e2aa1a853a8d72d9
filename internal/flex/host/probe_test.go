package host

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: what the schedule says is what is done, by the clock.
func TestPace(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name     string
		signals  []time.Duration // pauses before each
		takes    time.Duration
		outcomes []outcome // then well
		want     string
	}{
		{"one at once", []time.Duration{0}, 5 * ms, nil, "[0s]"},
		{"a storm", []time.Duration{0, 100 * ms, 100 * ms, 1000 * ms, 500 * ms}, 5 * ms, nil, "[0s 1.005s 2.01s]"},
		{"failures", []time.Duration{0}, 0, []outcome{failed, failed, failed}, "[0s 1s 3s 7s]"},
		{"a change after failures", []time.Duration{0, 10 * time.Second}, 0, []outcome{
			failed, failed, failed, failed,
		}, "[0s 1s 3s 7s 10s]"},
		{"nothing there", []time.Duration{0}, 0, []outcome{failed, skipped}, "[0s 1s]"},
		{"a change during a slow one", []time.Duration{0, 3000 * ms}, 10 * time.Second, nil, "[0s 11s]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			start := time.Now()
			var begun []time.Duration
			signals := make(chan struct{}, 1)
			go pace(ctx, signals, func(context.Context) outcome {
				begun = append(begun, time.Since(start))
				<-time.After(c.takes)
				if len(begun) > len(c.outcomes) {
					return succeeded
				}
				return c.outcomes[len(begun)-1]
			})
			for _, pause := range c.signals {
				<-time.After(pause)
				select {
				case signals <- struct{}{}:
				default:
				}
			}
			<-time.After(time.Hour)
			cancel()
			synctest.Wait()
			if got := fmt.Sprint(begun); got != c.want {
				t.Errorf("%s: at %s, want %s", c.name, got, c.want)
			}
		})
	}
}
