package doctor

import (
	"context"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// twoPods mounts a volume for two Pods concurrently, and unmounts it for one. Drivers without
// attach get two volumes, as for two Pods that name them inline.
func (x *exam) twoPods(ctx context.Context) {
	a, b := x.volume("pv1", 1), x.volume("pv1", 2)
	if !x.report.Capabilities.Attach {
		b = x.volume("pv2", 2)
	}
	if x.bothUp(ctx, a, b) {
		x.oneOfTwo(ctx, a, b)
	}
	x.down(ctx, a)
	x.down(ctx, b)
}

// bothUp mounts two volumes at the same time. A mount that fails is tried again alone, as hosts do.
func (x *exam) bothUp(ctx context.Context, a, b vol) bool {
	const (
		name   = "two-at-once"
		advice = "wait for a lock (flock -w) instead of giving up, and share no files between two calls"
	)
	argA, argB := x.json(decide.OpMount, a), x.json(decide.OpMount, b)
	if x.stopped() {
		return false
	}
	begunA, begunB := x.beginMount(ctx, a, argA), x.beginMount(ctx, b, argB)
	first, second := x.mounted(a, begunA), x.mounted(b, begunB)
	table := x.table()
	is := func(v vol) bool { return len(within(table, v.dir)) > 0 }
	switch {
	case first.ok() && !is(a) || second.ok() && !is(b):
		x.fail(name, both(), advice, "two mounts at the same time, for two pods: one of them answers Success, and nothing "+
			"is mounted")
		return false
	case first.ok() && second.ok():
		x.pass(name, "two mounts at the same time, for two pods, both succeed")
		return true
	}
	failed, why := a, first.why()
	if first.ok() {
		failed, why = b, second.why()
	}
	x.warn(name, advice, "two mounts at the same time, for two pods: %s", why)
	return (first.ok() || second.ok()) && x.up(ctx, failed)
}

// oneOfTwo unmounts one of two volumes that are mounted.
func (x *exam) oneOfTwo(ctx context.Context, a, b vol) {
	const name = "two-pods"
	two := len(within(x.table(), b.dir))
	c, _ := x.undoAll(ctx, decide.OpUnmount, a.dir)
	table := x.table()
	switch left := len(within(table, a.dir)) > 0; {
	case len(within(table, b.dir)) < two:
		x.fail(name, both(), "unmount the one directory that is given",
			"what is unmounted for one pod is gone for another one")
	case left && c.ok():
		x.fail(name, kubernetes(), "unmount the directory that is given, whatever else uses the volume",
			"what is mounted for another pod stays mounted for the one")
	case left:
		x.fail(name, both(), "unmount the directory that is given, whatever else uses the volume",
			"what is mounted for another pod stays mounted for the one: %s", c.why())
	default:
		x.pass(name, "each pod's volume is its own")
	}
}
