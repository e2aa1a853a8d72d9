package app

import (
	"log/slog"
	"sync"
	"time"
)

const (
	// firstNotice is after how long a wait is told.
	firstNotice = 5 * time.Second
	// lastNotice is the longest interval of the notices of one wait.
	lastNotice = 10 * time.Minute
)

// notice tells of a wait at growing intervals, and of its end if it was told.
type notice struct {
	log  *slog.Logger
	what string

	mu sync.Mutex
	// why is what is waited for, and began since when; pause is the interval before the next notice.
	why   string
	began time.Time
	pause time.Duration
	timer *time.Timer
	told  bool
}

func newNotice(log *slog.Logger, what string) *notice { return &notice{log: log, what: what} }

// tell says why one waits. Later texts replace it.
func (n *notice) tell(why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.why = why
	if n.timer == nil {
		n.began, n.pause, n.told = time.Now(), firstNotice, false
		n.timer = time.AfterFunc(n.pause, n.again)
	}
}

// over says that what was waited for is there. It may be repeated.
func (n *notice) over() {
	if n.stop() {
		n.log.Info(n.what+": it is over", "after", time.Since(n.began).Round(time.Second))
	}
}

// stop ends the notices of a wait, and returns whether it was told. It may be repeated.
func (n *notice) stop() (told bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.timer == nil {
		return false
	}
	n.timer.Stop()
	n.timer = nil
	return n.told
}

func (n *notice) again() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.timer == nil {
		return
	}
	n.told = true
	n.log.Info(n.what, "why", n.why, "since", time.Since(n.began).Round(time.Second))
	n.pause = min(2*n.pause, lastNotice)
	n.timer.Reset(n.pause)
}
