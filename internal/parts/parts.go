// Package parts runs what has to live together: parts start in order, and end in the reverse order when one of them
// ends or all are asked to.
package parts

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
)

// Part is one thing that runs until its context ends.
type Part struct {
	Name string
	// Run returns when ctx has ended and nothing of the part runs any more. A
	// return before that, with or without an error, ends the whole role.
	Run func(ctx context.Context) error
}

// Run starts the parts in order, waits until ctx ends or one of them
// returns, and stops them in the reverse order. It returns the error of the
// part that ended first by itself.
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
		// A part must go on while those that were started after it stop, so
		// its context does not end with ctx but by stop.
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

var errUnexpected = fmt.Errorf("without being asked to")

func orUnexpected(err error) error {
	if err == nil {
		return errUnexpected
	}
	return err
}
