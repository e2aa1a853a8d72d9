package app

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestTidier: memory is given back once for each rest that follows work, and
// not during the work.
func TestTidier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var allocated, freed atomic.Uint64
		go tidier{allocated: allocated.Load, free: func() { freed.Add(1) }}.run(ctx)
		synctest.Wait()
		for i, step := range []struct{ allocates, freed uint64 }{
			{restBytes, 0}, {10 * restBytes, 0}, {restBytes - 1, 1}, {restBytes - 1, 1}, {0, 1}, {restBytes, 1}, {0, 2}, {0, 2},
		} {
			allocated.Add(step.allocates)
			<-time.After(restPause)
			synctest.Wait()
			if got := freed.Load(); got != step.freed {
				t.Errorf("step %d: memory was given back %d times, want %d", i, got, step.freed)
			}
		}
	})
}

// TestTidierSeesAllocations: the figure of the running program grows with what
// is allocated.
func TestTidierSeesAllocations(t *testing.T) {
	tidier := newTidier()
	before := tidier.allocated()
	kept := make([][]byte, 0, 8)
	for range cap(kept) {
		kept = append(kept, make([]byte, restBytes))
	}
	if after := tidier.allocated(); after-before < uint64(len(kept)*restBytes) {
		t.Errorf("%d bytes more, want %d at least", after-before, len(kept)*restBytes)
	}
}
