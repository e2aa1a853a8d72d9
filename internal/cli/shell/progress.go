package shell

import (
	"context"
	"fmt"
	"io"
	"time"
)

// progressDelay is how long a command waits before it prints what it waits for.
const progressDelay = 2 * time.Second

// Progress runs work. While it runs, after progressDelay, progress writes to w each new
// text that tell returns.
func Progress(
	ctx context.Context, w io.Writer, tell func(context.Context) string, work func(context.Context) error,
) error {
	ctx, stop := context.WithCancel(ctx)
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		tick := time.NewTicker(progressDelay)
		defer tick.Stop()
		last := ""
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if text := tell(ctx); text != last && text != "" && ctx.Err() == nil {
				fmt.Fprintln(w, text)
				last = text
			}
		}
	}()
	err := work(ctx)
	stop()
	<-printed
	return err
}

// WithTimeout returns a context that ends after d; zero means no limit.
func WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
