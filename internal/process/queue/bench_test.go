package queue

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// These benchmarks are the figures of docs/design/queue.md: the same work with this
// queue and with client-go's, as controllers would use it.

const benchKeys, benchWorkers = 10_000, 50

// scheduler is what both queues can do.
type scheduler struct {
	add  func(key)
	stop func()
}

// schedulers start both queues with work that says whether a key has failed.
func schedulers(work func(key) error) map[string]func() scheduler {
	return map[string]func() scheduler{
		"own":       func() scheduler { return startOwn(work) },
		"client-go": func() scheduler { return startClientGo(work) },
	}
}

func startOwn(work func(key) error) scheduler {
	q := newQueue(Options[key]{
		Workers: benchWorkers, Retry: Backoff{time.Hour, time.Hour}, Silent: func(error) bool { return true },
		Process: func(_ context.Context, k key) (Result, error) { return Result{}, work(k) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		q.Run(ctx)
	}()
	return scheduler{add: q.Add, stop: func() { cancel(); <-ended }}
}

func startClientGo(work func(key) error) scheduler {
	q := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[key](time.Hour, time.Hour))
	var workers sync.WaitGroup
	for range benchWorkers {
		workers.Go(func() {
			for {
				k, closed := q.Get()
				if closed {
					return
				}
				if work(k) != nil {
					q.AddRateLimited(k)
				} else {
					q.Forget(k)
				}
				q.Done(k)
			}
		})
	}
	return scheduler{add: q.Add, stop: func() { q.ShutDown(); workers.Wait() }}
}

func manyOf(n int) []key {
	keys := make([]key, n)
	for i := range keys {
		keys[i] = key{"claim", "default", strconv.Itoa(i)}
	}
	return keys
}

// BenchmarkThroughput adds keys and waits until each has been processed.
func BenchmarkThroughput(b *testing.B) {
	keys := manyOf(benchKeys)
	var done sync.WaitGroup
	for name, start := range schedulers(func(key) error { done.Done(); return nil }) {
		b.Run(name, func(b *testing.B) {
			s := start()
			defer s.stop()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				done.Add(1)
				s.add(keys[i%benchKeys])
				if i%benchKeys == benchKeys-1 {
					done.Wait()
				}
			}
			done.Wait()
		})
	}
}

// BenchmarkMemory measures the memory that 10,000 keys take while each waits after its
// first failure, and the memory and goroutines that are left after they have succeeded.
func BenchmarkMemory(b *testing.B) {
	for _, failing := range []bool{true, false} {
		var left atomic.Int64
		work := func(key) error {
			left.Add(-1)
			if failing {
				return errNo
			}
			return nil
		}
		for name, start := range schedulers(work) {
			b.Run(map[bool]string{true: "failed/", false: "rest/"}[failing]+name, func(b *testing.B) {
				keys := manyOf(benchKeys)
				for b.Loop() {
					goroutines, before := runtime.NumGoroutine(), heap()
					s := start()
					left.Store(benchKeys)
					for _, k := range keys {
						s.add(k)
					}
					for left.Load() > 0 {
						runtime.Gosched()
					}
					b.ReportMetric(float64(heap()-before)/benchKeys, "B/key")
					b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
					s.stop()
				}
				runtime.KeepAlive(keys)
			})
		}
	}
}

// heap returns the bytes that are in use, those of stacks as well.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) + int64(m.StackInuse)
}
