package app

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestMemoryReleaser: memory is released once when the process becomes idle after
// work, and not during the work.
func TestMemoryReleaser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var allocated, freed atomic.Uint64
		go memoryReleaser{allocated: allocated.Load, free: func() { freed.Add(1) }}.run(ctx)
		synctest.Wait()
		for i, step := range []struct{ allocates, freed uint64 }{
			{idleBytes, 0}, {10 * idleBytes, 0}, {idleBytes - 1, 1}, {idleBytes - 1, 1}, {0, 1}, {idleBytes, 1}, {0, 2}, {0, 2},
		} {
			allocated.Add(step.allocates)
			<-time.After(idlePause)
			synctest.Wait()
			if got := freed.Load(); got != step.freed {
				t.Errorf("step %d: memory was given back %d times, want %d", i, got, step.freed)
			}
		}
	})
}

// TestMemoryReleaserMeasuresAllocations: the measured value of the running program
// grows with its allocations.
func TestMemoryReleaserMeasuresAllocations(t *testing.T) {
	memoryReleaser := newMemoryReleaser()
	before := memoryReleaser.allocated()
	kept := make([][]byte, 0, 8)
	for range cap(kept) {
		kept = append(kept, make([]byte, idleBytes))
	}
	if after := memoryReleaser.allocated(); after-before < uint64(len(kept)*idleBytes) {
		t.Errorf("%d bytes more, want %d at least", after-before, len(kept)*idleBytes)
	}
}
