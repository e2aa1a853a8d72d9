package up

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// A start that takes longer than patience is reported: each step, and at intervals that the step still lasts.
const (
	patience = 2 * time.Second
	remind   = 10 * time.Second
)

// starting is a start, which reports its steps while it takes long.
type starting struct {
	begun   time.Time
	step    atomic.Value
	stop    context.CancelFunc
	telling sync.WaitGroup
}

// begin begins a start.
func begin(ctx context.Context, out io.Writer) *starting {
	ctx, stop := context.WithCancel(ctx)
	s := &starting{begun: time.Now(), stop: stop}
	s.does("opening the data directory")
	s.telling.Go(func() { s.tell(ctx, out) })
	return s
}

// does sets the current step of the start.
func (s *starting) does(step string) { s.step.Store(step) }

// end ends the start, after which nothing of it is reported any more, and returns how long it took. It may be called
// again.
func (s *starting) end() time.Duration {
	took := time.Since(s.begun)
	s.stop()
	s.telling.Wait()
	return took
}

// tell writes the steps until ctx ends.
func (s *starting) tell(ctx context.Context, out io.Writer) {
	told, last := "", time.Time{}
	ticker := time.NewTicker(patience / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		step, _ := s.step.Load().(string)
		if time.Since(s.begun) < patience || step == told && time.Since(last) < remind {
			continue
		}
		fmt.Fprintf(out, "starting, %3.0f s: %s\n", time.Since(s.begun).Seconds(), step)
		told, last = step, time.Now()
	}
}
