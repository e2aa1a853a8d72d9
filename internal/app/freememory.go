package app

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// mostOfMemory is the part of a cgroup's memory at which the garbage collector is to stay.
const mostOfMemory = 0.9

// memoryReleaser looks whether a process works or is idle. By itself the garbage collector would keep the memory of a
// start or of a burst, because it runs only after new allocations.
type memoryReleaser struct {
	// every is the pause between two looks. A process works when it has allocated this many bytes meanwhile, and is idle
	// when it has not for so many looks.
	every time.Duration
	bytes uint64
	quiet int
	// works is called at each look at a process that works. rests is called when it has become idle, and again whenever it
	// has been idle four times as long: what databases compact and what expires is released minutes and hours later.
	works, rests func()
	// allocated returns how many bytes were allocated since the start.
	allocated func() uint64
}

// newMemoryReleaser is for a process beside a driver, or of a node agent: it returns memory to the operating system.
func newMemoryReleaser() memoryReleaser {
	return memoryReleaser{
		every: 10 * time.Second, bytes: 4 << 20, quiet: 1, works: func() {}, rests: debug.FreeOSMemory,
		allocated: func() uint64 { return runtimeFigure("/gc/heap/allocs:bytes") },
	}
}

// limitMemory has the garbage collector work harder from nine tenths of the memory on that the process's cgroup allows,
// unless GOMEMLIMIT sets a limit. Without a limit of the cgroup nothing changes.
func limitMemory() {
	_, _ = memlimit.Set(memlimit.WithProvider(memlimit.FromCgroup), memlimit.WithRatio(mostOfMemory))
}

// PaceGarbage trades memory for processor time while a control plane works, until ctx ends: up to 192 MiB of garbage.
// Most of its heap is long-lived, and to collect while it works as when it is idle would take a third of the time.
// Users decide otherwise by $GOGC.
func PaceGarbage(ctx context.Context) {
	limitMemory()
	if os.Getenv("GOGC") != "" {
		return
	}
	const garbage, most, idle = 192 << 20, 200, 60
	t := newMemoryReleaser()
	t.every, t.bytes, t.quiet = time.Second, 8<<20, 10
	t.works = func() {
		live := max(runtimeFigure("/gc/heap/live:bytes"), 1)
		debug.SetGCPercent(max(idle, int(min(most, 100*garbage/live))))
	}
	t.rests = func() {
		debug.SetGCPercent(idle)
		debug.FreeOSMemory()
	}
	t.run(ctx)
}

// runtimeFigure returns a figure of the running program.
func runtimeFigure(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// run looks until ctx ends. A start is work.
func (t memoryReleaser) run(ctx context.Context) {
	tick := time.NewTicker(t.every)
	defer tick.Stop()
	t.works()
	quiet, next := 0, t.quiet
	for last := t.allocated(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := t.allocated()
		if quiet++; now-last >= t.bytes {
			t.works()
			quiet, next = 0, t.quiet
		}
		if quiet == next {
			t.rests()
			next *= 4
		}
		last = now
	}
}
