package lifecycle

import (
	"log/slog"
	"sync"
	"time"
)

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
	// timer is nil while there is no wait.
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
		w.timer = time.AfterFunc(w.pause, w.tell)
	}
}

// Over says that what was waited for is there. It may be repeated.
func (w *Wait) Over() {
	if w.Stop() {
		w.log.Info(w.what+": it is over", "after", time.Since(w.began).Round(time.Second))
	}
}

// Stop ends the notices of a wait, and returns whether there were any. It may be repeated.
func (w *Wait) Stop() (told bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		return false
	}
	w.timer.Stop()
	w.timer = nil
	return w.pause > firstNotice
}

func (w *Wait) tell() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		return
	}
	w.log.Info(w.what, "why", w.why, "since", time.Since(w.began).Round(time.Second))
	w.pause = min(2*w.pause, lastNotice)
	w.timer.Reset(w.pause)
}
