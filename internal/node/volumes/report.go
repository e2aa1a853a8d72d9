package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/decide/retry"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// reporter records failures as events of the objects that wait.
type reporter struct {
	*shared
	// plan is what was carried out.
	plan *decide.Plan
	// try is the next try of the failure that is being reported.
	try retry.Try
}

// event records a warning, with the next try if it is about a failure.
func (r reporter) event(o runtime.Object, b volume.Because) { r.Events.WarnWith(o, b, r.try.Notes()) }

// after records the failures of a plan, and its obstacles, and returns the error for which the volume is requeued.
// errNotYet counts only if nothing else failed.
func (r reporter) after(ctx context.Context, f *facts, failed []failure, try retry.Try) error {
	r.warnStuck(ctx, f, r.plan.Because)
	if len(failed) == 0 {
		return nil
	}
	r.try = try
	var wrong, notYet error
	together := false
	for _, x := range failed {
		if errors.Is(x.err, errNotYet) {
			notYet = errors.Join(notYet, x.err)
			continue
		}
		b := r.inUse(ctx, f, x, decide.StepFailed(x.action.Verb, f.Driver, f.Node, failureOf(x.err)))
		if f.pv != nil && !f.Ephemeral {
			b.Object = "pv/" + f.pv.Name
		}
		b = f.NotBack(x.action, b)
		if f.consumers[x.action.Path].pod != nil {
			r.plan.Own[x.action.Path] = b
		} else if !together {
			r.plan.Because, together = b, true
		}
		wrong = errors.Join(wrong, x.err)
		if ctx.Err() == nil {
			r.warn(ctx, f, x.action, b)
		}
	}
	return cmp.Or(wrong, notYet)
}

// inUse adds the processes that keep the mount in use to the reason of a failed unmount. The search is
// expensive, so it runs only after the kernel or the driver has refused.
func (r reporter) inUse(ctx context.Context, f *facts, x failure, b volume.Because) volume.Because {
	var call *callError
	at := f.unmountPath(x.action)
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

// unmountPath returns the path that an action unmounts, or "".
func (f *facts) unmountPath(a decide.Action) string {
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

// describe returns the bounded text of an error.
func describe(err error) string {
	var call *callError
	if errors.As(err, &call) {
		return call.what + ": " + csi.Describe(call.err)
	}
	return fmt.Sprintf("%.900s", err)
}

// failureOf returns how a step failed, from which decide/mount derives who acts next.
func failureOf(err error) decide.Failure {
	f := decide.Failure{
		OtherID: errors.Is(err, errOtherID),
		NotDone: errors.Is(err, errNotMounted) || errors.Is(err, errNoDevice) || errors.Is(err, errNotGrown),
		Obstacle: slices.ContainsFunc([]error{
			mount.ErrOccupied, mount.ErrNotFree, mount.ErrNotPlain, mount.ErrNotPermitted, mount.ErrHidden, uses.ErrHostPath,
			errSecret, errMountedElsewhere, kube.ErrHeld,
			unix.ENOSPC, unix.EROFS, unix.EBUSY, unix.ENOTDIR,
		}, func(inTheWay error) bool { return errors.Is(err, inTheWay) }),
	}
	var call *callError
	if errors.As(err, &call) {
		f.Answer = csi.AnswerOf(call.err)
	}
	f.Text = describe(err)
	return f
}

// warn records a failed action at the objects that wait for it.
func (r reporter) warn(ctx context.Context, f *facts, failed decide.Action, b volume.Because) {
	switch {
	case b.Reason == volume.ReasonFailedNodeResize:
		grown := f.consumers[failed.Path]
		r.event(grown.claim, b)
		for _, c := range f.consumers {
			if c.pv != nil && c.pv.Name == grown.pv.Name {
				r.event(c.pod, b)
			}
		}
	case failed.Path != "" && (b.Reason == volume.ReasonFailedMount || b.Reason == volume.ReasonMountBroken):
		r.event(f.consumers[failed.Path].pod, b)
	case b.Reason == volume.ReasonFailedMount, b.Reason == volume.ReasonMountBroken:
		r.warnWaiting(f, b)
	default:
		r.warnUnmounting(ctx, f, failed.Path, b)
	}
}

// warnStuck records what keeps Pods waiting although no step of this agent failed.
func (r reporter) warnStuck(ctx context.Context, f *facts, b volume.Because) {
	for path, own := range r.plan.Own {
		if own.Reason == volume.ReasonFailedMount || own.Reason == volume.ReasonSELinuxLabelConflict {
			r.event(f.consumers[path].pod, own)
		}
	}
	switch b.Reason {
	case volume.ReasonFailedMount, volume.ReasonSELinuxLabelConflict:
		r.warnWaiting(f, b)
	case volume.ReasonMountBroken:
		r.warnBroken(f, b)
	case volume.ReasonDriverMissing:
		r.warnWaiting(f, b)
		if len(f.Wanted) == 0 || f.Record != nil && len(f.Record.Targets) > 0 {
			r.warnUnmounting(ctx, f, "", volume.Say(volume.ReasonFailedUnmount, b.Next, b.Message))
		}
	}
}

// warnBroken warns the Pods whose own mounts are broken; if it is the staged mount, all Pods.
func (r reporter) warnBroken(f *facts, b volume.Because) {
	warned := false
	for _, c := range f.Wanted {
		if f.Unseen(c) != "" || f.Unmounted(c.Path) || c.HostPath != "" && slices.Contains(f.differs, c.HostPath) {
			r.event(f.consumers[c.Path].pod, b)
			warned = true
		}
	}
	for _, c := range f.consumers {
		if !warned {
			r.Events.Warn(c.pod, b)
		}
	}
}

// warnUnmounting warns the Pods from which the volume is being unmounted; a path limits it to the Pod of that target.
// If no such Pod exists any more, it warns those that want the volume next, or what waits for the detach.
func (r reporter) warnUnmounting(ctx context.Context, f *facts, path string, b volume.Because) {
	record := r.Journal.Get(volume.Key(f.Driver, f.Handle))
	if record == nil {
		return
	}
	gone := false
	for _, t := range record.Targets {
		pod, there := r.Pods.ByUID(t.PodUID)
		gone = gone || !there
		if there && f.consumers[t.Path].pod == nil && (path == "" || path == t.Path) {
			r.event(pod, b)
		}
	}
	switch {
	case gone:
		r.warnDetachBlocked(ctx, f, f.object(path), b)
	case len(record.Targets) > 0:
	case len(f.Wanted) > 0:
		r.warnWaiting(f, b)
	default:
		r.warnDetachBlocked(ctx, f, f.pv, b)
	}
}

// warnDetachBlocked warns the attachment whose detach waits for this node; without one, the volume, otherwise the node.
func (r reporter) warnDetachBlocked(
	ctx context.Context, f *facts, pv *corev1.PersistentVolume, b volume.Because,
) {
	if f.AttachRequired {
		if va, err := r.attachmentOf(ctx, f); err == nil && va != nil {
			r.event(va, b)
			return
		}
	}
	if pv != nil {
		r.event(pv, b)
		return
	}
	if node, ok := r.Node.Object(); ok {
		r.event(node, b)
	}
}

// warnWaiting warns the Pods that are still missing the volume or a part of it, unless they wait for something of their
// own.
func (r reporter) warnWaiting(f *facts, b volume.Because) {
	record := r.Journal.Get(volume.Key(f.Driver, f.Handle))
	for path, c := range f.consumers {
		_, own := r.plan.Own[path]
		host, _, err := r.Finder.HostPath(c.pod)
		if !own && (err != nil || !record.Target(path).Serves(host) || f.Unmounted(path)) {
			r.event(c.pod, b)
		}
	}
}
