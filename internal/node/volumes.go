package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/flex"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/identity"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// rounds bounds how often one turn looks at a volume anew: once to take away,
// once to bring, once to see that nothing is left to do, and one to spare.
const rounds = 4

// errNotYet says that something that is no failure is waited for, and that no
// watch will tell when it is there.
var errNotYet = errors.New("not yet")

// reconcile brings one volume to where it should be: gather, decide, apply,
// until there is nothing left to do.
func (a *Agent) reconcile(ctx context.Context, key string) error {
	for range rounds {
		f, err := a.gather(ctx, key)
		if err != nil {
			return err
		}
		plan := decide.Volume(f.Facts)
		err = a.report(ctx, f, &plan, a.apply(ctx, f, plan))
		if plan.Because.Reason == volume.ReasonWaitForAttach {
			err = errors.Join(err, a.awaitAttach(ctx, f, a.reasonOf(key)))
		}
		a.tell(f, plan.Because)
		if wait := a.again.next(f.Driver); wait > 0 && len(f.Wanted) > 0 {
			a.work.addAfter(key, wait)
		}
		if err != nil || len(plan.Actions) == 0 {
			return err
		}
	}
	return nil
}

// failure is an action that was not done, and why.
type failure struct {
	action decide.Action
	err    error
}

// apply carries the actions out in order, but for those that a failed one
// blocks.
func (a *Agent) apply(ctx context.Context, f *facts, plan decide.Plan) []failure {
	d := &deed{a: a, f: f, rec: f.Record.Clone()}
	var failed []failure
	for _, action := range plan.Actions {
		if slices.ContainsFunc(failed, func(x failure) bool { return decide.Blocks(x.action, action) }) {
			continue
		}
		a.begun(f, decide.Begun(f.Facts, action.Verb))
		if err := d.do(ctx, action); err != nil {
			failed = append(failed, failure{action, err})
		}
	}
	if err := d.flush(); err != nil {
		verb := decide.Stage
		if len(f.Wanted) == 0 {
			verb = decide.Unstage
		}
		failed = append(failed, failure{decide.Action{Verb: verb}, err})
	}
	return failed
}

// report tells of what failed, and of what cannot begin, at the objects that it
// keeps waiting, and returns why the volume has to be looked at again. What is
// only waited for counts when nothing went wrong.
func (a *Agent) report(ctx context.Context, f *facts, plan *decide.Plan, failed []failure) error {
	a.warnStuck(ctx, f, plan.Because)
	if len(failed) == 0 {
		return nil
	}
	var wrong, notYet error
	for _, x := range failed {
		if errors.Is(x.err, errNotYet) {
			notYet = errors.Join(notYet, x.err)
			continue
		}
		b := decide.Failed(x.action.Verb, a.Name, describe(x.err), a.nextAfter(f, x.err))
		if wrong == nil {
			plan.Because = b
		}
		wrong = errors.Join(wrong, x.err)
		if ctx.Err() == nil {
			a.warn(ctx, f, x.action, b)
		}
	}
	if wrong != nil {
		return wrong
	}
	return notYet
}

func (d *deed) do(ctx context.Context, action decide.Action) error {
	switch action.Verb {
	case decide.MarkInUse, decide.UnmarkInUse:
		return d.a.node.Marks.Set(ctx, uses.UniqueName(d.f.Driver, d.f.Handle), action.Verb == decide.MarkInUse)
	case decide.CheckAttached:
		return d.checkAttached(ctx)
	case decide.Stage:
		return d.stage(ctx)
	case decide.Publish:
		return d.publish(ctx, action.Path)
	case decide.Bind:
		return d.bind(action.Path)
	case decide.Republish:
		return d.republish(ctx, action.Path)
	case decide.Grow:
		return d.grow(ctx)
	case decide.Unbind, decide.Unpublish, decide.Unstage:
		return d.takeAway(ctx, action)
	case decide.Drop:
		return d.drop()
	default:
		return fmt.Errorf("unknown action %q", action.Verb)
	}
}

// takeAway ends what somebody may be using, unless nothing may be taken away.
func (d *deed) takeAway(ctx context.Context, action decide.Action) error {
	if err := d.a.node.Hold(ctx); err != nil {
		return err
	}
	switch action.Verb {
	case decide.Unbind:
		return d.unbind(action.Path)
	case decide.Unpublish:
		return d.unpublish(ctx, action.Path)
	default:
		return d.unstage(ctx)
	}
}

// tell keeps the reason for the Pods' conditions and has the Pods looked at.
func (a *Agent) tell(f *facts, b volume.Because) {
	a.mu.Lock()
	if f.Record == nil && len(f.Wanted) == 0 {
		delete(a.told, volume.Key(f.Driver, f.Handle))
	} else {
		a.told[volume.Key(f.Driver, f.Handle)] = b
	}
	a.mu.Unlock()
	for _, pod := range f.consumers {
		a.podQueue.Add(cluster.Key(pod))
	}
	if f.Record == nil {
		return
	}
	for _, t := range f.Record.Targets {
		a.podQueue.Add(t.PodNamespace + "/" + t.PodName)
	}
}

// begun keeps the reason while a driver is asked, unless the last attempt has
// failed, which says more; what was refused without an attempt is over. A Pod whose
// condition says something older is told when the driver has had some time.
func (a *Agent) begun(f *facts, b volume.Because) {
	key := volume.Key(f.Driver, f.Handle)
	if b.Reason == "" || a.work.queue.NumRequeues(key) > 0 && strings.HasPrefix(string(a.reasonOf(key).Reason), "Failed") {
		return
	}
	a.mu.Lock()
	a.told[key] = b
	a.mu.Unlock()
	for _, pod := range f.consumers {
		if uses.Mounted(pod) != nil {
			a.podQueue.AddAfter(cluster.Key(pod), patience)
		}
	}
}

// describe returns an error as a bounded text.
func describe(err error) string {
	var call *callError
	if errors.As(err, &call) {
		return call.what + ": " + csi.Describe(call.err)
	}
	return fmt.Sprintf("%.900s", err)
}

// nextAfter says who has to act after a failure: a person when something of the
// host or of the API is in the way, the driver when it has not done what it says,
// and otherwise this agent, which tries again.
func (a *Agent) nextAfter(f *facts, err error) string {
	for _, inTheWay := range []error{
		mount.ErrOccupied, mount.ErrNotFree, mount.ErrNotPlain, mount.ErrNotPermitted, mount.ErrHidden, uses.ErrHostPath, errSecret, errElsewhere, identity.ErrHeld,
		unix.ENOSPC, unix.EROFS, unix.EBUSY, unix.ENOTDIR,
	} {
		if errors.Is(err, inTheWay) {
			return "user"
		}
	}
	var call *callError
	if errors.As(err, &call) && status.Code(call.err) == codes.DeadlineExceeded {
		return f.Driver
	}
	if errors.Is(err, errNotMounted) || errors.Is(err, errNoDevice) {
		return f.Driver
	}
	return "node " + a.Name
}

// warn records a failure at the objects that it keeps waiting.
func (a *Agent) warn(ctx context.Context, f *facts, failed decide.Action, b volume.Because) {
	switch {
	case b.Reason == volume.ReasonFailedNodeResize:
		a.Events.Warn(f.claim, b)
		for _, pod := range f.consumers {
			a.Events.Warn(pod, b)
		}
	case failed.Verb == decide.Republish || failed.Verb == decide.Publish:
		a.Events.Warn(f.consumers[failed.Path], b)
	case b.Reason == volume.ReasonFailedMount:
		a.warnWaiting(f, b)
	default:
		a.warnLeaving(ctx, f, failed.Path, b)
	}
}

// warnStuck records what keeps Pods waiting, or has happened to them, without
// any step of this agent having failed.
func (a *Agent) warnStuck(ctx context.Context, f *facts, b volume.Because) {
	switch b.Reason {
	case volume.ReasonFailedMount:
		a.warnWaiting(f, b)
	case volume.ReasonMountBroken:
		for path, pod := range f.consumers {
			if f.Dead[path] {
				a.Events.Warn(pod, b)
			}
		}
	case volume.ReasonDriverMissing:
		a.warnWaiting(f, b)
		if len(f.Wanted) == 0 || f.Record != nil && len(f.Record.Targets) > 0 {
			a.warnLeaving(ctx, f, "", volume.Because{Reason: volume.ReasonFailedUnmount, Message: b.Message, Next: b.Next})
		}
	}
}

// warnLeaving tells the Pods that the volume is to be taken from; path limits
// it to the one that it is published to there. When it is taken from none any
// more, those wait that want it next, or its detach.
func (a *Agent) warnLeaving(ctx context.Context, f *facts, path string, b volume.Because) {
	record := a.journal.Get(volume.Key(f.Driver, f.Handle))
	if record == nil {
		return
	}
	gone := false
	for _, t := range record.Targets {
		pod, there := a.pods.ByUID(t.PodUID)
		gone = gone || !there
		if there && f.consumers[t.Path] == nil && (path == "" || path == t.Path) {
			a.Events.Warn(pod, b)
		}
	}
	switch {
	case gone:
		a.warnHeld(ctx, f, b)
	case len(record.Targets) > 0:
	case len(f.Wanted) > 0:
		a.warnWaiting(f, b)
	default:
		a.warnHeld(ctx, f, b)
	}
}

// warnHeld tells the attachment whose detach waits for this node, or without one
// the volume, or the node if nobody knows of that.
func (a *Agent) warnHeld(ctx context.Context, f *facts, b volume.Because) {
	if f.AttachRequired {
		va, err := a.Client.StorageV1().VolumeAttachments().Get(ctx, attach.NameOf(f.Driver, f.Handle, f.Node), metav1.GetOptions{})
		if err == nil {
			a.Events.Warn(va, b)
			return
		}
	}
	if f.pv != nil {
		a.Events.Warn(f.pv, b)
		return
	}
	if node, ok := a.node.Object(); ok {
		a.Events.Warn(node, b)
	}
}

// warnWaiting leaves out the Pods that have what they want.
func (a *Agent) warnWaiting(f *facts, b volume.Because) {
	record := a.journal.Get(volume.Key(f.Driver, f.Handle))
	for path, pod := range f.consumers {
		host, _, err := a.finder.HostPath(pod)
		if err != nil || !served(record.Target(path), host) {
			a.Events.Warn(pod, b)
		}
	}
}

// served says whether a target has all that its Pod asks for.
func served(t *decide.Target, host string) bool {
	return t != nil && t.Phase == decide.Published && (host == "" || t.HostPhase == decide.Bound && t.HostPath == host)
}

// recorded returns the volumes of the journal as the Node names them.
func (a *Agent) recorded() []corev1.UniqueVolumeName {
	var out []corev1.UniqueVolumeName
	for _, r := range a.journal.List() {
		if !r.Ephemeral {
			out = append(out, uses.UniqueName(r.Driver, r.Handle))
		}
	}
	return out
}

// watch has everything looked at that a change concerns.
func (a *Agent) watch() {
	a.pods.Watch(a.podChanged)
	a.claims.Watch(func(before, after *corev1.PersistentVolumeClaim) {
		c := after
		if c == nil {
			c = before
		}
		for _, pod := range a.pods.By(cluster.PodsByClaim, cluster.Key(c)) {
			a.addPod(pod)
		}
	})
	a.volumes.Watch(func(before, after *corev1.PersistentVolume) {
		for _, pv := range []*corev1.PersistentVolume{before, after} {
			if pv == nil || pv.Spec.CSI == nil || pv.Spec.ClaimRef == nil {
				continue
			}
			for _, pod := range a.pods.By(cluster.PodsByClaim, pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name) {
				a.addPod(pod)
			}
		}
	})
	a.nodes.Watch(a.nodeChanged)
	a.csiDrivers.Watch(func(before, after *storagev1.CSIDriver) {
		for _, d := range []*storagev1.CSIDriver{before, after} {
			if d != nil {
				a.addAll(d.Name)
			}
		}
	})
}

func (a *Agent) podChanged(before, after *corev1.Pod) {
	if before != nil && after != nil && uses.Alive(before) == uses.Alive(after) && before.UID == after.UID &&
		before.Annotations[volume.AnnMountAt] == after.Annotations[volume.AnnMountAt] {
		return
	}
	for _, pod := range []*corev1.Pod{before, after} {
		if pod != nil {
			a.addPod(pod)
		}
	}
}

// addPod asks for a Pod and all that it wants or has to be looked at.
func (a *Agent) addPod(pod *corev1.Pod) {
	for _, u := range a.finder.Of(pod) {
		a.work.add(u.Key())
	}
	for _, r := range a.journal.List() {
		if slices.ContainsFunc(r.Targets, func(t decide.Target) bool { return t.PodUID == string(pod.UID) }) {
			a.work.add(r.Key())
		}
	}
	a.podQueue.Add(cluster.Key(pod))
}

// nodeChanged looks at the volumes that were attached or detached, and notices
// when the Node was deleted under its agent.
func (a *Agent) nodeChanged(before, after *corev1.Node) {
	a.node.Changed(before, after)
	if after == nil {
		return
	}
	a.flexChanged(before, after)
	was := map[corev1.UniqueVolumeName]bool{}
	if before != nil {
		for _, v := range before.Status.VolumesAttached {
			was[v.Name] = true
		}
	}
	for _, v := range after.Status.VolumesAttached {
		if driver, handle, ok := uses.Split(v.Name); ok && !was[v.Name] {
			a.work.add(volume.Key(driver, handle))
		}
	}
}

// flexChanged looks at the volumes of the FlexVolume drivers of which the Node
// says something else than before: their Pods are told why they wait.
func (a *Agent) flexChanged(before, after *corev1.Node) {
	was, is := flex.Told(before), flex.Told(after)
	for _, all := range []map[string]string{was, is} {
		for driver := range all {
			wrong, known := was[driver]
			if now, still := is[driver]; known != still || wrong != now {
				a.addAll(driver)
			}
		}
	}
}
