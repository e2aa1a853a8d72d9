package observe

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Load is what a queue has to do.
type Load struct {
	// Depth is how many keys wait.
	Depth int
	// Unfinished is for how long all keys together have been processed that still are, and Longest for how long one
	// of them.
	Unfinished, Longest time.Duration
}

// queues holds the queues of a process by name.
type queues struct {
	mu  sync.Mutex
	all map[string]func() Load
}

// register makes the gauges of all queues.
func (q *queues) register(r *Registry) {
	for name, of := range map[string]func(Load) float64{
		nameDepth:      func(l Load) float64 { return float64(l.Depth) },
		nameUnfinished: func(l Load) float64 { return l.Unfinished.Seconds() },
		nameLongest:    func(l Load) float64 { return l.Longest.Seconds() },
	} {
		r.Gauge(name, func(set Set) {
			q.mu.Lock()
			all := maps.Clone(q.all)
			q.mu.Unlock()
			for _, name := range slices.Sorted(maps.Keys(all)) {
				set(of(all[name]()), name)
			}
		})
	}
}

// Queue counts what one queue does.
type Queue struct {
	added, retried prometheus.Counter
	queued, worked prometheus.Observer
	operations     prometheus.ObserverVec
}

// Queue returns the counter of a queue, whose pending work load returns; nil for a nil Registry.
func (r *Registry) Queue(name string, load func() Load) *Queue {
	if r == nil {
		return nil
	}
	r.queues.mu.Lock()
	defer r.queues.mu.Unlock()
	if r.queues.all == nil {
		r.queues.all = map[string]func() Load{}
	}
	r.queues.all[name] = load
	return &Queue{
		added: r.added.WithLabelValues(name), retried: r.retried.WithLabelValues(name),
		queued: r.queued.WithLabelValues(name), worked: r.worked.WithLabelValues(name),
		operations: r.operations.MustCurryWith(prometheus.Labels{"controller": name}),
	}
}

// Added counts a key that is queued.
func (q *Queue) Added() { q.added.Inc() }

// Begun counts how long a key has waited.
func (q *Queue) Begun(waited time.Duration) { q.queued.Observe(waited.Seconds()) }

// Retried counts a key that is processed again because it has failed.
func (q *Queue) Retried() { q.retried.Inc() }

// Ended counts how long a key of a kind was processed, and with which result.
func (q *Queue) Ended(operation, result string, took time.Duration) {
	q.worked.Observe(took.Seconds())
	q.operations.WithLabelValues(operation, result).Observe(took.Seconds())
}
