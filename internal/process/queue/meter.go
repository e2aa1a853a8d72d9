package queue

import "time"

// Meter observes the keys of a queue. Its methods are called while the queue is locked, so they must not block, nor
// call the queue.
type Meter[K comparable] interface {
	// Added reports a key that was not queued before.
	Added()
	// Begun reports how long a key was queued before it is processed.
	Begun(waited time.Duration)
	// Ended reports how long a key was processed, and with which error.
	Ended(k K, took time.Duration, err error)
}

// Load is what a queue has to do.
type Load struct {
	// Depth is how many keys wait.
	Depth int
	// Unfinished is for how long all keys together have been processed that still are, and Longest for how long one
	// of them.
	Unfinished, Longest time.Duration
}

// Measure has a meter observe the keys from now on. It must be called before Run.
func (q *Queue[K]) Measure(m Meter[K]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.meter = m
	for _, k := range q.ready {
		q.measureAdded(q.keys[k])
	}
}

// Load returns what a queue has to do that Measure has been called for.
func (q *Queue[K]) Load() Load {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := Load{Depth: len(q.ready)}
	for _, e := range q.keys {
		if e.state == dirty {
			l.Depth++
		}
		if e.state == processing || e.state == dirty {
			since := time.Since(e.begun)
			l.Unfinished, l.Longest = l.Unfinished+since, max(l.Longest, since)
		}
	}
	return l
}

func (q *Queue[K]) measureAdded(e *entry) {
	if q.meter != nil {
		e.added = time.Now()
		q.meter.Added()
	}
}

func (q *Queue[K]) measureBegun(e *entry) {
	if q.meter != nil {
		e.begun = time.Now()
		q.meter.Begun(e.begun.Sub(e.added))
	}
}

func (q *Queue[K]) measureEnded(k K, e *entry, err error) {
	if q.meter != nil {
		q.meter.Ended(k, time.Since(e.begun), err)
	}
}
