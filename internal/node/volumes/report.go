package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/identity"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// reporter tells of what went wrong at the objects that it keeps waiting.
type reporter struct{ *parts }

// after tells of what failed, and of what cannot begin, at the objects that it
// keeps waiting, and returns why the volume has to be looked at again. What is
// only waited for counts when nothing went wrong.
func (r reporter) after(ctx context.Context, f *facts, plan *decide.Plan, failed []failure) error {
	r.warnStuck(ctx, f, plan.Because)
	if len(failed) == 0 {
		return nil
	}
	var wrong, notYet error
	for _, x := range failed {
		if errors.Is(x.err, errNotYet) {
			notYet = errors.Join(notYet, x.err)
			continue
		}
		b := r.inUse(ctx, f, x, decide.StepFailed(x.action.Verb, f.Driver, f.Node, causeOf(x.err)))
		if wrong == nil {
			plan.Because = b
		}
		wrong = errors.Join(wrong, x.err)
		if ctx.Err() == nil {
			r.warn(ctx, f, x.action, b)
		}
	}
	if wrong != nil {
		return wrong
	}
	return notYet
}

// inUse adds to the reason of a failed unmount who keeps in use what is still mounted. A
// search costs something, so there is one only after the kernel or the driver has
// refused.
func (r reporter) inUse(ctx context.Context, f *facts, x failure, b volume.Because) volume.Because {
	var call *callError
	at := f.takenFrom(x.action)
	if at == "" || !f.Verify || !errors.Is(x.err, unix.EBUSY) && !errors.As(x.err, &call) {
		return b
	}
	points, err := r.table.Below(at)
	if err != nil || len(points) == 0 {
		return b
	}
	all, err := r.search.Holders(ctx, points)
	if err != nil {
		r.Log.Debug("it is not known who uses a mount", "path", at, "err", err)
	}
	holders := make([]decide.Holder, 0, len(all))
	for _, h := range all {
		holders = append(holders, decide.Holder(h))
	}
	return decide.InUse(b, r.Node.Name, holders)
}

// takenFrom returns where an action takes a filesystem away, "" when it does not.
func (f *facts) takenFrom(a decide.Action) string {
	switch {
	case f.Block:
	case a.Verb == decide.Unbind:
		return f.Record.Target(a.Path).HostPath
	case a.Verb == decide.Unpublish:
		return a.Path
	case a.Verb == decide.Unstage:
		return f.Record.StagingPath
	}
	return ""
}

// describe returns an error as a bounded text.
func describe(err error) string {
	var call *callError
	if errors.As(err, &call) {
		return call.what + ": " + csi.Describe(call.err)
	}
	return fmt.Sprintf("%.900s", err)
}

// causeOf returns why a step failed, as what decides who has to act.
func causeOf(err error) decide.Cause {
	c := decide.Cause{
		Text: describe(err), NotShown: errors.Is(err, errNotMounted) || errors.Is(err, errNoDevice),
		InTheWay: slices.ContainsFunc([]error{
			mount.ErrOccupied, mount.ErrNotFree, mount.ErrNotPlain, mount.ErrNotPermitted, mount.ErrHidden, uses.ErrHostPath,
			errSecret, errElsewhere, identity.ErrHeld,
			unix.ENOSPC, unix.EROFS, unix.EBUSY, unix.ENOTDIR,
		}, func(inTheWay error) bool { return errors.Is(err, inTheWay) }),
	}
	var call *callError
	if errors.As(err, &call) {
		c.Code = csi.AnswerOf(call.err).Code
	}
	return c
}

// warn records a failure at the objects that it keeps waiting.
func (r reporter) warn(ctx context.Context, f *facts, failed decide.Action, b volume.Because) {
	switch {
	case b.Reason == volume.ReasonFailedNodeResize:
		r.Events.Warn(f.claim, b)
		for _, pod := range f.consumers {
			r.Events.Warn(pod, b)
		}
	case failed.Verb == decide.Republish || failed.Verb == decide.Publish:
		r.Events.Warn(f.consumers[failed.Path], b)
	case b.Reason == volume.ReasonFailedMount:
		r.warnWaiting(f, b)
	default:
		r.warnLeaving(ctx, f, failed.Path, b)
	}
}

// warnStuck records what keeps Pods waiting, or has happened to them, without
// any step of this agent having failed.
func (r reporter) warnStuck(ctx context.Context, f *facts, b volume.Because) {
	switch b.Reason {
	case volume.ReasonFailedMount:
		r.warnWaiting(f, b)
	case volume.ReasonMountBroken:
		for path, pod := range f.consumers {
			if f.Dead[path] || f.Unmounted(path) {
				r.Events.Warn(pod, b)
			}
		}
	case volume.ReasonDriverMissing:
		r.warnWaiting(f, b)
		if len(f.Wanted) == 0 || f.Record != nil && len(f.Record.Targets) > 0 {
			r.warnLeaving(ctx, f, "", volume.Because{Reason: volume.ReasonFailedUnmount, Message: b.Message, Next: b.Next})
		}
	}
}

// warnLeaving tells the Pods that the volume is to be taken from; path limits
// it to the one that it is published to there. When it is taken from none any
// more, those wait that want it next, or its detach.
func (r reporter) warnLeaving(ctx context.Context, f *facts, path string, b volume.Because) {
	record := r.Journal.Get(volume.Key(f.Driver, f.Handle))
	if record == nil {
		return
	}
	gone := false
	for _, t := range record.Targets {
		pod, there := r.Pods.ByUID(t.PodUID)
		gone = gone || !there
		if there && f.consumers[t.Path] == nil && (path == "" || path == t.Path) {
			r.Events.Warn(pod, b)
		}
	}
	switch {
	case gone:
		r.warnHeld(ctx, f, b)
	case len(record.Targets) > 0:
	case len(f.Wanted) > 0:
		r.warnWaiting(f, b)
	default:
		r.warnHeld(ctx, f, b)
	}
}

// warnHeld tells the attachment whose detach waits for this node, or without one
// the volume, or the node if nobody knows of that.
func (r reporter) warnHeld(ctx context.Context, f *facts, b volume.Because) {
	if f.AttachRequired {
		if va, err := r.attachmentOf(ctx, f); err == nil && va != nil {
			r.Events.Warn(va, b)
			return
		}
	}
	if f.pv != nil {
		r.Events.Warn(f.pv, b)
		return
	}
	if node, ok := r.Node.Object(); ok {
		r.Events.Warn(node, b)
	}
}

// warnWaiting leaves out the Pods that have what they want.
func (r reporter) warnWaiting(f *facts, b volume.Because) {
	record := r.Journal.Get(volume.Key(f.Driver, f.Handle))
	for path, pod := range f.consumers {
		host, _, err := r.Finder.HostPath(pod)
		if err != nil || !record.Target(path).Serves(host) || f.Unmounted(path) {
			r.Events.Warn(pod, b)
		}
	}
}
