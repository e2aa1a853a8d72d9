package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// undo is a call that undoes what the driver has done. An unmount is only called if something is
// mounted at or below its directory.
type undo struct {
	op   decide.Operation
	what string
}

// afterwards has the driver undo what it has done, and checks what is left then.
func (x *exam) afterwards(ctx context.Context) {
	judged := x.calls
	for _, u := range slices.Backward(x.undo) {
		if u.op == decide.OpDetach {
			x.call(ctx, u.op, u.what, x.Node)
		} else if len(within(x.table(), u.what)) > 0 {
			x.call(ctx, u.op, u.what)
		}
	}
	x.calls = judged
	pids := x.remaining(ctx)
	x.wrongIf(len(pids) > 0,
		fmt.Sprintf("%d processes of the driver still run when nothing is mounted any more", len(pids)),
		question{"leftover-processes", nil, "end in unmount what mount has started", "no process is left"})
	reason := ""
	if left := within(x.table(), x.root); len(left) > 0 {
		reason = "something is still mounted at " + left[0].Path
	}
	x.answer(question{
		"leftover-mounts", both(), "unmount in unmount all that mount has mounted", "nothing is left mounted",
	}, reason)
}

// remaining returns the driver's running processes, after giving them a moment to end.
func (x *exam) remaining(ctx context.Context) []int {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	const tries = 50
	for try := 1; ; try++ {
		pids := x.dir.Processes()
		if len(pids) == 0 || try == tries {
			return pids
		}
		select {
		case <-ctx.Done():
			return pids
		case <-pause.C:
		}
	}
}
