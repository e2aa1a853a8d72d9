package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
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
		// A part continues while those that were started after it stop, so its context ends by stop and not with ctx.
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

// Wake sends to a channel with room for one, unless it is full: the receiver has not seen the last wake yet.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Sleep waits for a time, and returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

var errUnexpected = fmt.Errorf("without being asked to")

func orUnexpected(err error) error { return cmp.Or(err, errUnexpected) }

// UnlessEnded returns err, or nil if ctx has ended: then err only says that the part was asked to end.
func UnlessEnded(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

const (
	// firstNotice is how long a wait lasts before it is logged.
	firstNotice = 5 * time.Second
	// lastNotice is the longest interval of the notices of one wait.
	lastNotice = 10 * time.Minute
)

// Wait logs a wait at growing intervals, and its end if the wait was logged.
type Wait struct {
	log  *slog.Logger
	what string

	mu sync.Mutex
	// why is what is waited for, and began since when; pause is the interval before the next notice.
	why   string
	began time.Time
	pause time.Duration
	// timer is nil while nothing is waited for.
	timer *time.Timer
}

// NewWait returns a Wait that has not begun.
func NewWait(log *slog.Logger, what string) *Wait { return &Wait{log: log, what: what} }

// For begins the wait, or replaces its reason.
func (w *Wait) For(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why = why
	if w.timer == nil {
		w.began, w.pause = time.Now(), firstNotice
		w.timer = time.AfterFunc(w.pause, w.notify)
	}
}

// Over says that what was waited for is there. It may be repeated.
func (w *Wait) Over() {
	if w.Stop() {
		w.log.Info(w.what+": it is over", "after", time.Since(w.began).Round(time.Second))
	}
}

// Stop ends the notices of a wait, and returns whether there were any. It may be repeated.
func (w *Wait) Stop() (noticed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		return false
	}
	w.timer.Stop()
	w.timer = nil
	return w.pause > firstNotice
}

func (w *Wait) notify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		return
	}
	w.log.Info(w.what, "why", w.why, "since", time.Since(w.began).Round(time.Second))
	w.pause = min(2*w.pause, lastNotice)
	w.timer.Reset(w.pause)
}
