package world

import (
	"context"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/since"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/volume"
)

const (
	// surveyPause is the shortest pause between two surveys of the cluster. A survey that takes long is made so rarely
	// that it takes a fiftieth of the time.
	surveyPause, surveyShare = 15 * time.Second, 50
	// surveyLimit bounds the reads of a survey.
	surveyLimit = 10 * time.Second
	// maxCauses bounds the causes of a process: some are reasons of other programs' events.
	maxCauses = 200
	// otherCause stands for all causes above maxCauses, and for those that are no word.
	otherCause = "Other"
)

// waits is how many objects wait for a cause, and since when the first of them does; zero if that is not known.
type waits struct {
	count  int
	oldest time.Time
}

// waiting counts what waits, by the cause that `volplane why` tells.
type waiting struct {
	world *World
	log   *slog.Logger

	mu    sync.Mutex
	next  time.Time
	known map[string]bool
	last  map[string]waits
}

// Measure counts what waits whenever it is asked for, and tells when each node was heard of last.
func (w *World) Measure(r *observe.Registry, caches *kube.Caches, log *slog.Logger) {
	measureWaiting(r, &waiting{world: w, log: log, known: map[string]bool{}})
	measureHeartbeats(r, caches)
}

func measureWaiting(r *observe.Registry, w *waiting) {
	r.Gauge(observe.Waiting, func(set observe.Set) {
		for cause, is := range w.survey() {
			set(float64(is.count), cause)
		}
	})
	r.Gauge(observe.WaitingOldest, func(set observe.Set) {
		for cause, is := range w.survey() {
			if !is.oldest.IsZero() {
				set(time.Since(is.oldest).Seconds(), cause)
			}
		}
	})
}

// survey returns what waits, as of a few seconds ago. If the cluster cannot be read, nothing is known.
func (w *waiting) survey() map[string]waits {
	w.mu.Lock()
	defer w.mu.Unlock()
	begin := time.Now()
	if begin.Before(w.next) {
		return w.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), surveyLimit)
	defer cancel()
	w.last = nil
	o, err := w.world.Objects(ctx)
	if err != nil {
		w.log.Warn("what waits is not counted", "err", err)
	} else {
		w.last = tally(o, w.known)
	}
	w.next = time.Now().Add(max(surveyPause, surveyShare*time.Since(begin)))
	return w.last
}

// tally counts what waits in a cluster. known are the causes that were counted before.
func tally(o state.Objects, known map[string]bool) map[string]waits {
	w := why.Of(o)
	times, out := since.TimesIn(o, w.View).WithoutTries(), map[string]waits{}
	for _, c := range survey.Causes(w) {
		cause := causeOf(c.Because.Reason, known)
		is := out[cause]
		for _, held := range c.Waits {
			is.count++
			links := []chain.Link{c.Link}
			at := times.Of(held.Namespace, chain.Chain{Subject: held.Subject, Links: links}, c.Link).Since
			if !at.IsZero() && (is.oldest.IsZero() || at.Before(is.oldest)) {
				is.oldest = at
			}
		}
		out[cause] = is
	}
	return out
}

// causeOf returns the label for a reason. Reasons of events may be anybody's words.
func causeOf(r volume.Reason, known map[string]bool) string {
	cause := string(r)
	if word, _ := regexp.MatchString(`^[A-Za-z][A-Za-z0-9]{0,63}$`, cause); !word {
		return otherCause
	}
	if !known[cause] && len(known) >= maxCauses {
		return otherCause
	}
	known[cause] = true
	return cause
}

// measureHeartbeats tells when each node was heard of last. The Lease of a node that is gone may stay for a while, and
// nobody waits for its heartbeat.
func measureHeartbeats(r *observe.Registry, caches *kube.Caches) {
	leases, nodes := caches.NodeLeases(), caches.Nodes()
	r.Gauge(observe.Heartbeat, func(set observe.Set) {
		for _, l := range leases.List() {
			if _, ok := nodes.Get(l.Name); ok && l.Spec.RenewTime != nil {
				set(float64(l.Spec.RenewTime.UnixMicro())/1e6, l.Name)
			}
		}
	})
}
