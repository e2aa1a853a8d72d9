package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"volplane.dev/volplane/internal/csi"
)

func cutChecks() []check {
	return []check{{
		"lost-answer", (*exam).mounts, (*exam).checkLostAnswer,
		"finish or undo what was begun when the caller gives up; the same call comes again",
	}}
}

// lose makes a call and gives it up, as a caller does that dies: after a short time, so that a fast driver is still at
// work, in the middle of what such a call usually takes, and later and later until one is answered. Before that it is
// not known that one has arrived, on a busy machine. Whoever does not answer at all is found by the time limit.
func lose(ctx context.Context, usual time.Duration, call func(context.Context) error) {
	longest := max(5*time.Second, usual)
	for after := 2 * time.Millisecond; after <= longest; after = max(2*after, 20*time.Millisecond, usual/2) {
		short, cancel := context.WithCancel(ctx)
		stop := time.AfterFunc(after, cancel)
		_ = call(short)
		answered := stop.Stop()
		cancel()
		if answered {
			return
		}
	}
}

// checkLostAnswer takes a volume through its life, and gives each call up before it repeats it.
func (x *exam) checkLostAnswer(ctx context.Context) verdict {
	v, before := x.volume(), x.strangers(ctx)
	for _, s := range []struct {
		step
		mounts int
	}{
		{step{"CreateVolume", (*vol).create}, 0},
		{step{"ControllerPublishVolume", (*vol).attach}, 0},
		{step{"NodeStageVolume", (*vol).stage}, 0},
		{step{"NodePublishVolume", (*vol).publish}, 1},
		{step{"NodeUnpublishVolume", (*vol).unpublish}, 0},
		{step{"NodeUnstageVolume", (*vol).unstage}, 0},
		{step{"ControllerUnpublishVolume", (*vol).detach}, 0},
		{step{"DeleteVolume", (*vol).remove}, 0},
	} {
		call := func(ctx context.Context) error { return s.call(v, ctx) }
		lose(ctx, x.usual[s.name], call)
		if err := x.until(ctx, call); err != nil {
			return fail("the answer of %s is lost, and the same call fails: %s", s.name, csi.Describe(err))
		}
		if problem := v.mountProblem(s.mounts); problem != "" {
			return fail("the answer of %s is lost: %s", s.name, problem)
		}
		if after := x.strangers(ctx); len(after) > len(before) {
			return fail("the answer of %s is lost, and there is a second volume", s.name)
		}
	}
	return pass("every call can be repeated whose answer was lost")
}

// mountProblem returns what is wrong with the mounts of a volume that must have that many at its target.
func (v *vol) mountProblem(atTarget int) string {
	if n := mounts(v.targets[0]); n != atTarget {
		return fmt.Sprintf("there are %d mounts at the target_path, not %d", n, atTarget)
	}
	if n := mounts(v.staging()); n > 1 || n > 0 && v.state < staged {
		return fmt.Sprintf("there are %d mounts at the staging_target_path", n)
	}
	return ""
}

func killedChecks() []check {
	const repeat = "write down what is begun before it is begun, or find out from the storage and the mount table; " +
		"the same call comes again after a restart"
	return []check{
		{
			"stale-socket", (*exam).startedByUs, (*exam).checkStaleSocket,
			"remove the socket file that a killed driver has left, before listening",
		},
		{
			"killed-mounts", (*exam).startedByUs, own((*exam).checkKilledMounts, published),
			"keep what serves mounted volumes (FUSE and the like) out of the driver's process, and remount it at the start",
		},
		{"killed-create", (*exam).startedByUs, (*exam).checkKilledCreate, repeat},
		{"killed-stage", (*exam).startedByUs, (*exam).checkKilledStage, repeat},
		{"killed-publish", (*exam).startedByUs, (*exam).checkKilledPublish, repeat},
		{"killed-unpublish", (*exam).startedByUs, (*exam).checkKilledUnpublish, repeat},
		{"killed-delete", (*exam).startedByUs, (*exam).checkKilledDelete, repeat},
		{"ends", (*exam).startedByUs, (*exam).checkEnds, "end the calls in flight at SIGTERM, and then the process, " +
			"within seconds"},
	}
}

// checkStaleSocket kills the driver, which leaves its socket file.
func (x *exam) checkStaleSocket(ctx context.Context) verdict {
	for _, p := range x.all() {
		p.kill()
		left := x.exists(p.socket)
		if err := x.revive(ctx, p); err != nil {
			return fail("the driver was killed and does not start again: %v (its socket file was left: %v)", err, left)
		}
	}
	return pass("a driver that was killed starts again")
}

// checkKilledMounts kills the driver while a volume is mounted.
func (x *exam) checkKilledMounts(ctx context.Context, v *vol) verdict {
	target := v.targets[0]
	if err := v.write(target, "alive"); err != nil {
		return skipped(err)
	}
	x.node.kill()
	alive := v.holds(target, "alive")
	if err := x.revive(ctx, x.node); err != nil {
		return skipped(err)
	}
	again := v.holds(target, "alive")
	err := x.until(ctx, v.publish)
	n, after := mounts(target), v.holds(target, "alive")
	undone := v.to(ctx, none)
	switch {
	case errors.Is(alive, errWaits):
		return fail("the driver was killed, and the users of a mounted volume wait forever")
	case alive != nil:
		return fail("the driver was killed, and a mounted volume no longer works: %v", alive)
	case again != nil:
		return fail("the driver was started again, and a mounted volume no longer works: %v", again)
	case err != nil:
		return fail("after a restart what is published cannot be published again: %s", csi.Describe(err))
	case n != 1 || after != nil:
		return fail("after a restart, published again, there are %d mounts (%v)", n, after)
	case undone != nil:
		return fail("after a restart a volume cannot be removed: %v", undone)
	}
	return pass("a mounted volume stays in use while the driver is killed and started again")
}

// moments returns when a call is cut off: at its begin, and in the middle of what it usually takes.
func (x *exam) moments(call string) []time.Duration {
	return []time.Duration{time.Millisecond, x.usual[call] / 2}
}

// cut kills a process in the middle of a call, starts it again, and repeats the call until it succeeds.
func (x *exam) cut(ctx context.Context, p *process, after time.Duration, v *vol, s step) error {
	call := func(ctx context.Context) error { return s.call(v, ctx) }
	done := make(chan struct{})
	go func() {
		_ = call(ctx)
		close(done)
	}()
	moment := time.NewTimer(after)
	defer moment.Stop()
	<-moment.C
	p.kill()
	<-done
	if err := x.revive(ctx, p); err != nil {
		return err
	}
	if err := x.until(ctx, call); err != nil {
		return failure{s.name, err}
	}
	return nil
}

// killed cuts a step off at each moment, with a volume that is at the state before it, and looks at what is there then.
// It takes the step once before, to know what it takes: another volume, such as a clone, may take another time.
func (x *exam) killed(ctx context.Context, p *process, from state, s step, look func(*vol) string) verdict {
	v := x.volume()
	if err := errors.Join(v.to(ctx, from), v.take(ctx, s), v.to(ctx, none)); err != nil {
		return skipped(err)
	}
	before := x.strangers(ctx)
	for _, after := range x.moments(s.name) {
		v := x.volume()
		if err := v.to(ctx, from); err != nil {
			return skipped(err)
		}
		if err := x.cut(ctx, p, after, v, s); err != nil {
			return fail("the driver was killed in %s, and the same call fails: %v", s.name, err)
		}
		if problem := look(v); problem != "" {
			return fail("the driver was killed in %s: %s", s.name, problem)
		}
		if more := x.strangers(ctx); len(more) > len(before) {
			return fail("the driver was killed in %s, and there is an unknown volume: %.128q", s.name,
				more[len(more)-1])
		}
		if err := v.to(ctx, none); err != nil {
			return fail("the driver was killed in %s, and the volume cannot be removed: %v", s.name, err)
		}
	}
	return pass("%s can be repeated after the driver was killed in it", s.name)
}

func (x *exam) checkKilledCreate(ctx context.Context) verdict {
	return x.killed(ctx, x.controller, none, upwards()[created], func(v *vol) string {
		return volumeProblem(v.createRequest(), v.made)
	})
}

func (x *exam) checkKilledStage(ctx context.Context) verdict {
	return x.killed(ctx, x.node, attached, upwards()[staged], func(v *vol) string {
		if err := v.to(ctx, published); err != nil {
			return err.Error()
		}
		return v.mountProblem(1)
	})
}

func (x *exam) checkKilledPublish(ctx context.Context) verdict {
	return x.killed(ctx, x.node, staged, upwards()[published], func(v *vol) string { return v.mountProblem(1) })
}

func (x *exam) checkKilledUnpublish(ctx context.Context) verdict {
	return x.killed(ctx, x.node, published, downwards()[published], func(v *vol) string {
		if x.exists(v.targets[0]) {
			return "the target_path is still there"
		}
		return v.mountProblem(0)
	})
}

func (x *exam) checkKilledDelete(ctx context.Context) verdict {
	return x.killed(ctx, x.controller, created, downwards()[created], func(v *vol) string {
		if all, err := x.listed(ctx); x.lists() && err == nil && all[v.id()] {
			return "the volume is still in the list"
		}
		return ""
	})
}

// checkEnds asks the driver to end. It is only a warning: callers kill a driver that does not.
func (x *exam) checkEnds(ctx context.Context) verdict {
	for _, p := range x.all() {
		ended := p.terminates(ctx)
		p.kill()
		if err := x.revive(ctx, p); err != nil {
			return fail("the driver was asked to end, and does not start again: %v", err)
		}
		if !ended {
			return warn("the driver does not end within %v of SIGTERM", endLimit)
		}
	}
	return pass("the driver ends at SIGTERM, and starts again")
}
