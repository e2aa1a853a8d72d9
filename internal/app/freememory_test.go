package app

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestMemoryReleaser: works is called for each busy interval, and rests when the process has become idle and when it
// has been idle four times as long.
func TestMemoryReleaser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const enough = 1000
		var allocated atomic.Uint64
		var said atomic.Value
		said.Store("")
		say := func(word string) func() { return func() { said.Store(said.Load().(string) + word) } }
		go memoryReleaser{
			every: time.Second, bytes: enough, quiet: 2, works: say("w"), rests: say("r"), allocated: allocated.Load,
		}.run(ctx)
		synctest.Wait()
		for i, step := range []struct {
			allocates uint64
			said      string
		}{
			{enough, "ww"},
			{10 * enough, "www"},
			{enough - 1, "www"},
			{enough - 1, "wwwr"},
			{0, "wwwr"},
			{enough, "wwwrw"},
			{0, "wwwrw"},
			{enough, "wwwrww"},
			{0, "wwwrww"},
			{0, "wwwrwwr"},
			{0, "wwwrwwr"},
			{0, "wwwrwwr"},
			{0, "wwwrwwr"},
			{0, "wwwrwwr"},
			{0, "wwwrwwr"},
			{0, "wwwrwwrr"},
			{0, "wwwrwwrr"},
			{enough, "wwwrwwrrw"},
			{0, "wwwrwwrrw"},
			{0, "wwwrwwrrwr"},
		} {
			allocated.Add(step.allocates)
			<-time.After(time.Second)
			synctest.Wait()
			if got := said.Load(); got != step.said {
				t.Errorf("step %d: %q, want %q", i, got, step.said)
			}
		}
	})
}

// TestMemoryReleaserMeasuresAllocations: the measured value of the running program
// grows with its allocations.
func TestMemoryReleaserMeasuresAllocations(t *testing.T) {
	const size = 4 << 20
	allocated := newMemoryReleaser().allocated
	before := allocated()
	kept := make([][]byte, 0, 8)
	for range cap(kept) {
		kept = append(kept, make([]byte, size))
	}
	if after := allocated(); after-before < uint64(len(kept)*size) {
		t.Errorf("%d bytes more, want %d at least", after-before, len(kept)*size)
	}
}
