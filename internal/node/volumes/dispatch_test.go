package volumes

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// TestPanicIsOneVolumesOwn: work that panics is tried again, and the other
// volumes are worked on.
func TestPanicIsOneVolumesOwn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done, tries := make(chan string, 10), 0
	d := newDispatcher(time.Millisecond, time.Millisecond, func(_ context.Context, key string) error {
		if key == "d^bad" {
			if tries++; tries < 3 {
				panic("poison")
			}
		}
		done <- key
		return nil
	}, slog.New(slog.DiscardHandler))
	d.add("d^bad")
	d.add("d^good")
	ended := make(chan struct{})
	go func() {
		d.run(ctx)
		close(ended)
	}()
	if first, second := <-done, <-done; first == second {
		t.Errorf("done: %s twice", first)
	}
	cancel()
	<-ended
}
