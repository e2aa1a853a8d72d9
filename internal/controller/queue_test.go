package controller

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pass lets time pass, which only the clock of a test does.
func pass(d time.Duration) { <-time.After(d) }

// TestQueueOneAtATime: a key is never worked on twice at once, comes again when
// it was asked for meanwhile, and only so many keys are worked on at once.
func TestQueueOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, keys = 3, 20
		q := &queue{}
		var mu sync.Mutex
		now, most, times := map[Key]bool{}, 0, map[Key]int{}
		q.start(workers, func(k Key) {
			mu.Lock()
			if now[k] {
				t.Errorf("%s is worked on twice at once", k)
			}
			now[k] = true
			most = max(most, len(now))
			times[k]++
			first := times[k] == 1
			mu.Unlock()
			if first {
				// Asked for twice meanwhile is once more.
				q.add(k)
				q.add(k)
			}
			pass(time.Second)
			mu.Lock()
			delete(now, k)
			mu.Unlock()
		})
		for i := range keys {
			q.add(Key{Name: fmt.Sprint(i)})
			q.add(Key{Name: fmt.Sprint(i)})
		}
		pass(time.Hour)
		q.stop()
		if most != workers {
			t.Errorf("%d keys were worked on at once, want %d", most, workers)
		}
		for i := range keys {
			if got := times[Key{Name: fmt.Sprint(i)}]; got != 2 {
				t.Errorf("key %d was worked on %d times, want 2", i, got)
			}
		}
	})
}

// TestQueueSooner: of two times at which a key is to come, it comes at the first
// and not at the other; asking for it now does not take back a later time.
func TestQueueSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at []time.Duration
		q := &queue{}
		q.start(1, func(Key) { at = append(at, time.Since(begin)) })
		q.addAfter(Key{}, 3*time.Second)
		q.addAfter(Key{}, 2*time.Second)
		q.addAfter(Key{}, 4*time.Second)
		q.add(Key{})
		pass(time.Hour)
		q.stop()
		if len(at) != 2 || at[0] != 0 || at[1] != 2*time.Second {
			t.Errorf("came after %v, want 0s and 2s", at)
		}
	})
}

// TestQueueForgets: when all is done nothing is left of thousands of keys, no
// goroutine either.
func TestQueueForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 10
		q := &queue{shortest: time.Second, longest: time.Second}
		failed := map[Key]bool{}
		var mu sync.Mutex
		for i := range 3 * manyKeys {
			q.add(Key{Name: fmt.Sprint(i)})
		}
		q.start(workers, func(k Key) {
			mu.Lock()
			defer mu.Unlock()
			if !failed[k] {
				failed[k] = true
				q.failed(k)
				return
			}
			q.went(k)
		})
		pass(time.Minute)
		synctest.Wait()
		if len(failed) != 3*manyKeys || q.keys != nil || q.ready != nil {
			t.Errorf("%d keys were worked on, %d remembered, %d waiting", len(failed), len(q.keys), len(q.ready))
		}
		if q.free != workers {
			t.Errorf("%d goroutines are left of %d", workers-q.free, workers)
		}
		// A goroutine that is left holds this up, which synctest reports.
		q.workers.Wait()
		q.stop()
	})
}

// TestQueueStops: what waits when a queue stops is not begun, and what is worked
// on ends before.
func TestQueueStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, ended := 0, 0
		q := &queue{}
		q.start(1, func(Key) { begun++; pass(time.Second); ended++ })
		q.add(Key{Name: "a"})
		q.add(Key{Name: "b"})
		q.addAfter(Key{Name: "c"}, time.Minute)
		synctest.Wait()
		q.stop()
		if begun != 1 || ended != 1 {
			t.Errorf("%d begun, %d ended, want 1 and 1", begun, ended)
		}
		pass(time.Hour)
		q.add(Key{Name: "d"})
		synctest.Wait()
		if begun != 1 {
			t.Error("something was begun after the end")
		}
	})
}
