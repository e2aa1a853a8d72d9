package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
)

// Part is a component that runs until its context ends.
type Part struct {
	Name string
	// Run runs the part. It must return after ctx has ended, when nothing of the part runs any
	// more. An earlier return, with or without an error, stops all other parts.
	Run func(ctx context.Context) error
}

// Run starts the parts in order, waits until ctx ends or one of them returns, and stops them in the
// reverse order. If a part has returned by itself, Run returns its error.
func Run(ctx context.Context, log *slog.Logger, parts []Part) error {
	type ended struct {
		name string
		err  error
	}
	first := make(chan ended, len(parts))
	type running struct {
		name string
		stop context.CancelFunc
		done chan struct{}
	}
	var started []running
	for _, p := range parts {
		// A part continues while those that were started after it stop, so its context ends by stop
		// and not with ctx.
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		r := running{name: p.Name, stop: stop, done: make(chan struct{})}
		started = append(started, r)
		go func() {
			defer close(r.done)
			err := p.Run(own)
			first <- ended{p.Name, err}
		}()
	}
	var result error
	select {
	case <-ctx.Done():
	case e := <-first:
		result = fmt.Errorf("%s ended: %w", e.name, orUnexpected(e.err))
	}
	for _, r := range slices.Backward(started) {
		r.stop()
		<-r.done
		log.Debug("stopped", "part", r.name)
	}
	return result
}

// After returns what runs a part when a channel is closed; if its context ends before that, it does nothing.
func After(begin <-chan struct{}, run func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-begin:
			return run(ctx)
		}
	}
}

var errUnexpected = fmt.Errorf("without being asked to")

func orUnexpected(err error) error {
	if err == nil {
		return errUnexpected
	}
	return err
}

// UnlessEnded returns err, or nil if ctx has ended: then err only says that the part was asked to end.
func UnlessEnded(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}
