package app

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// A process is idle when it allocates less than idleBytes during idlePause.
const (
	idlePause = 10 * time.Second
	idleBytes = 4 << 20
)

// memoryReleaser returns memory to the operating system whenever a process becomes idle
// after work. Otherwise the process would keep the memory of a start or of a burst,
// because the garbage collector runs only after new allocations.
type memoryReleaser struct {
	// allocated returns how many bytes were allocated since the start.
	allocated func() uint64
	free      func()
}

func newMemoryReleaser() memoryReleaser {
	return memoryReleaser{free: debug.FreeOSMemory, allocated: func() uint64 {
		s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}}
}

// run releases memory until ctx ends.
func (t memoryReleaser) run(ctx context.Context) {
	tick := time.NewTicker(idlePause)
	defer tick.Stop()
	worked := true
	for last := t.allocated(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := t.allocated()
		switch {
		case now-last >= idleBytes:
			worked = true
		case worked:
			t.free()
			worked = false
		}
		last = now
	}
}
