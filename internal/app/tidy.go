package app

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Bounds of rest: a process rests when it allocates less than so many bytes in
// so much time.
const (
	restPause = 10 * time.Second
	restBytes = 4 << 20
)

// tidier gives memory back to the system whenever a process rests after work.
// What a start or a storm needed would stay with it until the next one: garbage
// is collected when there is new garbage.
type tidier struct {
	// allocated tells how many bytes have been allocated since the start.
	allocated func() uint64
	free      func()
}

func newTidier() tidier {
	return tidier{free: debug.FreeOSMemory, allocated: func() uint64 {
		s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}}
}

// run looks after the memory until ctx ends.
func (t tidier) run(ctx context.Context) {
	tick := time.NewTicker(restPause)
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
		case now-last >= restBytes:
			worked = true
		case worked:
			t.free()
			worked = false
		}
		last = now
	}
}
