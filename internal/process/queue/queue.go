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

// manyKeys is the peak number of keys above which an empty map is released.
const manyKeys = 1000

// Options configure a queue.
type Options[K comparable] struct {
	// Process does the next step for a key. It must be safe to repeat. A panic counts as an error.
	Process func(ctx context.Context, key K) (Result, error)
	// Workers bounds how many keys are processed at the same time; 0 means 1. A key that holds a
	// place in a lane does not count.
	Workers int
	// Lanes bounds how many keys are processed at the same time in each lane.
	Lanes Limit
	// Retry is the back-off after errors; the defaults are 50 ms and 5 minutes.
	Retry Backoff
	// Poll is the back-off after results with Poll; the default is Retry.
	Poll Backoff
	// Held, if set, says after which errors a key waits for a person's consent, which no event reports: it is processed
	// again within heldPause.
	Held func(error) bool
	// Noun is the attribute of a key in the log; the default is "key".
	Noun string
	// Silent, if set, says which errors are not logged.
	Silent func(error) bool
	// Log receives the errors; the default is slog's default.
	Log *slog.Logger
}

// heldPause is the longest pause of a key that waits for a person's consent.
const heldPause = 5 * time.Second

// Result says when a key is processed again without being added.
type Result struct {
	// After is the pause before the key is processed again; zero means never.
	After time.Duration
	// Poll says that the key is processed again after the back-off Options.Poll, because it waits
	// for a state that no event reports. This is neither a failure nor a success, which would reset
	// the back-off after errors.
	Poll bool
}

// Queue holds keys until they are processed. It is safe for concurrent use.
type Queue[K comparable] struct {
	options Options[K]

	mu sync.Mutex
	// ready holds the queued keys in order.
	ready []K
	// keys holds the entries of all keys that are not idle or have failures or a timer.
	keys map[K]*entry
	// peak is the largest number of keys since keys was empty.
	peak  int
	lanes lanes[K]
	// worker is the function that a worker runs; nil before Run and when Run ends.
	worker func()
	// meter observes the keys, or is nil.
	meter Meter[K]
	// free is the number of workers that may be started.
	free    int
	workers sync.WaitGroup
	closed  bool
}

// entry is the state of one key.
type entry struct {
	state state
	// uncounted says that the key's worker is not one of Options.Workers, because the key holds a
	// place in a lane.
	uncounted bool
	// laneOnly says that timer was set only because the key waits for a place.
	laneOnly bool
	// slow says that the key's last call of a lane was slow and failed.
	slow bool
	// failures is the number of errors since the last success.
	failures int32
	// polls is the number of results with Poll since the last success.
	polls int32
	// timer adds the key when it is due, or is nil.
	timer *time.Timer
	due   time.Time
	// added is when the key was queued, and begun when it was processed last. Only a queue with a meter has them.
	added, begun time.Time
}

type state uint8

const (
	idle state = iota
	// queued means that the key is in Queue.ready.
	queued
	processing
	// dirty means that the key was added while it was processed.
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
	q.lanes.late = q.late
	return q
}

// Run processes keys until ctx ends, and returns when all workers have stopped. It is called once.
// Keys that are queued at the end are dropped.
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

// Add queues a key.
func (q *Queue[K]) Add(k K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(k, q.entry(k))
}

// AddAfter queues a key after a pause. If it is called several times, the earliest end counts.
func (q *Queue[K]) AddAfter(k K, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addAfter(k, q.entry(k), pause, false)
}

// Failures returns the number of errors of a key since its last success.
func (q *Queue[K]) Failures(k K) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.keys[k]; e != nil {
		return int(e.failures)
	}
	return 0
}

// Attempt is called by Process. If the key that is being processed fails now, number is the number of
// failures since its last success, and pause is the pause until it is processed again.
func (q *Queue[K]) Attempt(k K) (number int, pause time.Duration) {
	failures := q.Failures(k)
	return failures + 1, q.options.Retry.Pause(failures)
}

// LongestPause returns the longest pause after an error.
func (q *Queue[K]) LongestPause() time.Duration { return q.options.Retry.Max }

// Enter is called by Process before it makes a call of a lane. With ok, the key holds a place until
// Process returns, or until it has held it for so long that the next key gets it. Otherwise Process
// must return without the call, and is called again when the key has got a place; waited is how long
// the key has waited until now. Waiting does not reset the failures of a key.
func (q *Queue[K]) Enter(k K, in Lane) (ok bool, waited time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.keys[k]
	if ok, waited = q.lanes.enter(k, in, e != nil && e.slow); ok {
		q.uncount(e)
	}
	return ok, waited
}

// late gives the place of a key to others, because it has not been processed for long.
func (q *Queue[K]) late(t *ticket[K]) {
	q.mu.Lock()
	given := q.lanes.giveBack(t)
	q.mu.Unlock()
	if given {
		q.options.Log.Warn("a call has not returned for a long time; its worker slot is given to others", q.options.Noun,
			fmt.Sprint(t.key), "driver", t.lane.Driver, "after", callPatience)
	}
}

// uncount starts another worker in the place of a key's worker that holds a place in a lane, because
// the lane bounds it from now on.
func (q *Queue[K]) uncount(e *entry) {
	if e == nil || e.uncounted || e.state != processing && e.state != dirty {
		return
	}
	if e.laneOnly {
		// The key has its place, so the timer is not needed. It would queue the key after its call,
		// perhaps while the cache does not show the result yet.
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
		q.measureAdded(e)
		e.state = queued
		q.ready = append(q.ready, k)
		q.startWorker()
	case processing:
		q.measureAdded(e)
		e.state = dirty
	case queued, dirty:
	}
}

// addAfter sets the timer of a key, unless it is due sooner. The timer remains laneOnly if it was not
// needed for another purpose before.
func (q *Queue[K]) addAfter(k K, e *entry, pause time.Duration, laneOnly bool) {
	if q.closed {
		return
	}
	laneOnly = laneOnly && (e.timer == nil || e.laneOnly)
	due := time.Now().Add(pause)
	if e.timer != nil && !due.Before(e.due) {
		e.laneOnly = laneOnly
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
	e.timer, e.due, e.laneOnly = timer, due, laneOnly
}

func (e *entry) stopTimer() {
	if e.timer != nil {
		e.timer.Stop()
	}
	e.timer, e.laneOnly = nil, false
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
		attempt, more := q.done(k, result, err)
		if err != nil && ctx.Err() == nil && (q.options.Silent == nil || !q.options.Silent(err)) {
			level := slog.LevelWarn
			if attempt&(attempt-1) != 0 {
				level = slog.LevelDebug // the first, the second, the fourth failure and so on say enough
			}
			q.options.Log.Log(ctx, level, "failed, will be retried", q.options.Noun, fmt.Sprint(k), "attempt", attempt,
				"err", err)
		}
		if !more {
			return
		}
	}
}

var errPanic = errors.New("panic")

// process calls Process. A panic does not end the program, and with it the work on all other keys
// (CVE-2020-8569).
func (q *Queue[K]) process(ctx context.Context, k K) (result Result, err error) {
	defer func() {
		if r := recover(); r != nil {
			q.options.Log.Error("panic", q.options.Noun, fmt.Sprint(k), "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	return q.options.Process(ctx, k)
}

// next returns the key that a worker processes next. Without one, the worker ends.
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
	q.measureBegun(q.keys[k])
	q.lanes.processing(k)
	return k, true
}

// done applies the result of a key, and returns the number of its failures. more says whether the
// worker may process another key: an uncounted worker may exceed Options.Workers now.
func (q *Queue[K]) done(k K, result Result, err error) (failures int32, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.keys[k]
	q.measureEnded(k, e, err)
	more = !e.uncounted || q.free > 0
	if e.uncounted && more {
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
	return failures, more
}

// requeue sets the timer of a key according to its result.
func (q *Queue[K]) requeue(k K, e *entry, result Result, err error) {
	waits, slow := q.lanes.processed(k)
	if !waits {
		e.slow = slow && err != nil
	}
	switch {
	case err != nil:
		pause := q.options.Retry.Pause(int(e.failures))
		if q.options.Held != nil && q.options.Held(err) {
			pause = min(pause, heldPause)
		}
		q.addAfter(k, e, pause, false)
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

// forget drops an idle key without failures and timer.
func (q *Queue[K]) forget(k K, e *entry) {
	if e.failures > 0 || e.polls > 0 || e.timer != nil {
		return
	}
	delete(q.keys, k)
	if len(q.keys) == 0 && q.peak > manyKeys {
		q.keys, q.peak = nil, 0 // a map does not shrink
	}
}

// Backoff bounds the pauses after failures: the first is Min, each following one is twice as long,
// and none is longer than Max.
type Backoff struct{ Min, Max time.Duration }

// Pause returns the pause after a failure that follows a number of earlier failures.
func (b Backoff) Pause(failures int) time.Duration {
	d := b.Min
	for range failures {
		if d >= b.Max/2 {
			return b.Max
		}
		d *= 2
	}
	return min(d, b.Max)
}
