package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// manyKeys is the number of keys whose memory is worth giving back.
const manyKeys = 1000

// Options are the policy of a queue.
type Options[K comparable] struct {
	// Process brings one key one step nearer to what it should be. It must be
	// safe to repeat. A panic counts as an error of its key.
	Process func(ctx context.Context, key K) (Result, error)
	// Workers bounds how many keys are processed at once; 0 means 1. A key that
	// holds a place in a lane is not counted.
	Workers int
	// Lanes bounds how many keys are processed at once in each lane.
	Lanes Limit
	// Retry has the pauses after errors; the defaults are 50 ms and 5 minutes.
	Retry Backoff
	// Poll has the pauses after results that say Poll; the default is Retry.
	Poll Backoff
	// Noun says in the log what a key names; the default is "key".
	Noun string
	// Silent, when set, says which errors are retried without a line in the log.
	Silent func(error) bool
	// Log receives the errors; the default is slog's default.
	Log *slog.Logger
}

// Result says when to process a key again although nobody adds it.
type Result struct {
	// After is the pause before the key is processed again; zero is never.
	After time.Duration
	// Poll has the key processed again after a pause of Options.Poll. It is for
	// what is not there yet and nobody tells of; it is neither a failure nor
	// the end of the failures before it.
	Poll bool
}

// Queue holds keys until they are processed. It is safe for concurrent use.
type Queue[K comparable] struct {
	options Options[K]

	mu    sync.Mutex
	ready []K
	keys  map[K]*entry
	// peak is the largest number of keys since there were none.
	peak  int
	lanes lanes[K]
	// worker is what a worker runs; nil before Run and when Run ends.
	worker func()
	// free is how many more workers may be started.
	free    int
	workers sync.WaitGroup
	closed  bool
}

// entry is what is remembered of one key.
type entry struct {
	state state
	// uncounted says that its worker is not one of Options.Workers, because the
	// key holds a place in a lane.
	uncounted bool
	// turnOnly says that timer was set only because the key waits for a place.
	turnOnly bool
	// failures and polls are the numbers of errors and of results with Poll
	// since the last other result.
	failures, polls int32
	// timer adds the key when it is due; nil is none.
	timer *time.Timer
	due   time.Time
}

type state uint8

const (
	idle state = iota
	// queued is in Queue.ready.
	queued
	processing
	// dirty is processing, and was added meanwhile.
	dirty
)

// New returns a queue that processes nothing before Run.
func New[K comparable](o Options[K]) *Queue[K] {
	o.Workers = max(o.Workers, 1)
	o.Lanes.Places = max(o.Lanes.Places, 1)
	o.Retry = Backoff{cmp.Or(o.Retry.Min, 50*time.Millisecond), cmp.Or(o.Retry.Max, 5*time.Minute)}
	if o.Poll == (Backoff{}) {
		o.Poll = o.Retry
	}
	o.Noun, o.Log = cmp.Or(o.Noun, "key"), cmp.Or(o.Log, slog.Default())
	q := &Queue[K]{options: o, lanes: lanes[K]{limit: o.Lanes}}
	q.lanes.granted = func(k K) { q.add(k, q.entry(k)) }
	return q
}

// Run processes keys until ctx ends, and returns when all workers have stopped.
// It is called once. Keys that are queued then are dropped.
func (q *Queue[K]) Run(ctx context.Context) {
	q.mu.Lock()
	q.free, q.worker = q.options.Workers, func() { q.work(ctx) }
	for range q.ready {
		q.startWorker()
	}
	q.mu.Unlock()
	<-ctx.Done()
	q.stop()
	q.workers.Wait()
}

func (q *Queue[K]) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.worker = true, nil
	for _, e := range q.keys {
		e.stopTimer()
	}
}

// Add has a key processed soon.
func (q *Queue[K]) Add(k K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(k, q.entry(k))
}

// AddAfter has a key processed after a pause. Of several pauses the one that
// ends first counts.
func (q *Queue[K]) AddAfter(k K, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addAfter(k, q.entry(k), pause, false)
}

// Failures returns the number of errors of a key since it was processed without
// one.
func (q *Queue[K]) Failures(k K) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.keys[k]; e != nil {
		return int(e.failures)
	}
	return 0
}

// Enter is called by Process before it does what the lane limits. With ok, the
// key holds a place in the lane until Process returns. Otherwise Process returns
// without having done it, and is called again when the key's turn has come;
// waited is how long the key has waited for that until now. The failures of a
// key that waits are kept.
func (q *Queue[K]) Enter(k K, in Lane) (ok bool, waited time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ok, waited = q.lanes.enter(k, in); ok {
		q.uncount(q.keys[k])
	}
	return ok, waited
}

// uncount has a key that got a place in a lane, which bounds it from now on,
// leave its place among the workers to another key.
func (q *Queue[K]) uncount(e *entry) {
	if e == nil || e.uncounted || e.state != processing && e.state != dirty {
		return
	}
	if e.turnOnly {
		// The timer would only have the key processed when all is done, perhaps
		// with a cache that does not show it yet.
		e.stopTimer()
	}
	e.uncounted = true
	if q.free++; len(q.ready) > 0 {
		q.startWorker()
	}
}

func (q *Queue[K]) entry(k K) *entry {
	e := q.keys[k]
	if e == nil {
		e = &entry{}
		if q.keys == nil {
			q.keys = map[K]*entry{}
		}
		q.keys[k] = e
		q.peak = max(q.peak, len(q.keys))
	}
	return e
}

func (q *Queue[K]) add(k K, e *entry) {
	switch e.state {
	case idle:
		e.state = queued
		q.ready = append(q.ready, k)
		q.startWorker()
	case processing:
		e.state = dirty
	case queued, dirty:
	}
}

// addAfter sets the timer of a key unless it is due sooner. A timer that was
// wanted for anything but a turn as well is not turnOnly.
func (q *Queue[K]) addAfter(k K, e *entry, pause time.Duration, turnOnly bool) {
	if q.closed {
		return
	}
	turnOnly = turnOnly && (e.timer == nil || e.turnOnly)
	due := time.Now().Add(pause)
	if e.timer != nil && !due.Before(e.due) {
		e.turnOnly = turnOnly
		return
	}
	e.stopTimer()
	var timer *time.Timer
	timer = time.AfterFunc(pause, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if e.timer == timer {
			e.stopTimer()
			q.add(k, e)
		}
	})
	e.timer, e.due, e.turnOnly = timer, due, turnOnly
}

func (e *entry) stopTimer() {
	if e.timer != nil {
		e.timer.Stop()
	}
	e.timer, e.turnOnly = nil, false
}

func (q *Queue[K]) startWorker() {
	if q.worker != nil && q.free > 0 {
		q.free--
		q.workers.Go(q.worker)
	}
}

func (q *Queue[K]) work(ctx context.Context) {
	for {
		k, ok := q.next()
		if !ok {
			return
		}
		result, err := q.process(ctx, k)
		attempt, goOn := q.done(k, result, err)
		if err != nil && ctx.Err() == nil && (q.options.Silent == nil || !q.options.Silent(err)) {
			q.options.Log.Warn("failed, will be retried", q.options.Noun, fmt.Sprint(k), "attempt", attempt, "err", err)
		}
		if !goOn {
			return
		}
	}
}

var errPanic = errors.New("panic")

// process keeps one poisonous key from ending the process, and with it the work
// on all others (CVE-2020-8569).
func (q *Queue[K]) process(ctx context.Context, k K) (result Result, err error) {
	defer func() {
		if r := recover(); r != nil {
			q.options.Log.Error("panic", q.options.Noun, fmt.Sprint(k), "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	return q.options.Process(ctx, k)
}

// next returns the key that a worker processes next. Without one, the worker
// ends.
func (q *Queue[K]) next() (k K, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.worker == nil || len(q.ready) == 0 {
		q.free++
		return k, false
	}
	var none K
	k, q.ready[0] = q.ready[0], none
	if q.ready = q.ready[1:]; len(q.ready) == 0 {
		q.ready = nil
	}
	q.keys[k].state = processing
	q.lanes.processing(k)
	return k, true
}

// done takes the result of a key, and returns the number of its failures. goOn
// says whether the worker processes another key: one that was not counted may
// be one too many now.
func (q *Queue[K]) done(k K, result Result, err error) (failures int32, goOn bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.keys[k]
	goOn = !e.uncounted || q.free > 0
	if e.uncounted && goOn {
		q.free--
	}
	e.uncounted = false
	q.requeue(k, e, result, err)
	failures = e.failures
	if e.state == dirty {
		e.state = queued
		q.ready = append(q.ready, k)
	} else {
		e.state = idle
		q.forget(k, e)
	}
	return failures, goOn
}

// requeue sets the timer of a key as its result wants it.
func (q *Queue[K]) requeue(k K, e *entry, result Result, err error) {
	waits := q.lanes.processed(k)
	switch {
	case err != nil:
		q.addAfter(k, e, q.options.Retry.Pause(int(e.failures)), false)
		e.failures++
		return
	case result.Poll:
		q.addAfter(k, e, q.options.Poll.Pause(int(e.polls)), false)
		e.polls++
	case !waits:
		e.failures, e.polls = 0, 0
	}
	if result.After > 0 {
		q.addAfter(k, e, result.After, waits)
	}
}

// forget drops an idle key of which nothing has to be remembered.
func (q *Queue[K]) forget(k K, e *entry) {
	if e.failures > 0 || e.polls > 0 || e.timer != nil {
		return
	}
	delete(q.keys, k)
	if len(q.keys) == 0 && q.peak > manyKeys {
		// A map does not shrink.
		q.keys, q.peak = nil, 0
	}
}
