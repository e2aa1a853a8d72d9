package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/kube"
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
	a.warnStuck(f, plan.Because)
	if len(failed) == 0 {
		return nil
	}
	var wrong, notYet error
	for _, x := range failed {
		if errors.Is(x.err, errNotYet) {
			notYet = errors.Join(notYet, x.err)
			continue
		}
		b := decide.Failed(x.action.Verb, describe(x.err), "node "+a.Name)
		if wrong == nil {
			plan.Because = b
		}
		wrong = errors.Join(wrong, x.err)
		if ctx.Err() == nil {
			a.warn(f, x.action, b)
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
		return d.a.inUse.set(ctx, uniqueName(d.f.Driver, d.f.Handle), action.Verb == decide.MarkInUse)
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
	case decide.Unbind:
		return d.unbind(action.Path)
	case decide.Unpublish:
		return d.unpublish(ctx, action.Path)
	case decide.Unstage:
		return d.unstage(ctx)
	case decide.Drop:
		return d.drop()
	default:
		return fmt.Errorf("unknown action %q", action.Verb)
	}
}

// tell keeps the reason for the Pods' conditions and has the Pods looked at.
func (a *Agent) tell(f *facts, b volume.Because) {
	a.mu.Lock()
	if f.Record == nil && len(f.Wanted) == 0 {
		delete(a.told, decide.Key(f.Driver, f.Handle))
	} else {
		a.told[decide.Key(f.Driver, f.Handle)] = b
	}
	a.mu.Unlock()
	for _, pod := range f.consumers {
		a.podQueue.Add(kube.Key(pod))
	}
	if f.Record == nil {
		return
	}
	for _, t := range f.Record.Targets {
		a.podQueue.Add(t.PodNamespace + "/" + t.PodName)
	}
}

// describe returns an error as one bounded line.
func describe(err error) string {
	var call *callError
	if errors.As(err, &call) {
		return call.what + ": " + csi.Describe(call.err)
	}
	return err.Error()
}

// warn records a failure at the objects that it keeps waiting.
func (a *Agent) warn(f *facts, failed decide.Action, b volume.Because) {
	switch {
	case b.Reason == volume.ReasonFailedNodeResize:
		a.Events.Warn(f.claim, b)
	case failed.Verb == decide.Republish || failed.Verb == decide.Publish:
		a.Events.Warn(f.consumers[failed.Path], b)
	case b.Reason == volume.ReasonFailedMount:
		a.warnWaiting(f, b)
	default:
		a.warnLeaving(f, failed.Path, b)
	}
}

// warnStuck records what keeps Pods waiting, or has happened to them, without
// any step of this agent having failed.
func (a *Agent) warnStuck(f *facts, b volume.Because) {
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
		a.warnLeaving(f, "", volume.Because{Reason: volume.ReasonFailedUnmount, Message: b.Message, Next: b.Next})
	}
}

// warnLeaving tells the Pods that the volume is to be taken from; path limits
// it to the one that it is published to there.
func (a *Agent) warnLeaving(f *facts, path string, b volume.Because) {
	if f.Record == nil {
		return
	}
	for _, t := range f.Record.Targets {
		if pod, ok := a.pods.ByUID(t.PodUID); ok && f.consumers[t.Path] == nil && (path == "" || path == t.Path) {
			a.Events.Warn(pod, b)
		}
	}
}

// warnWaiting leaves out the Pods that have what they want.
func (a *Agent) warnWaiting(f *facts, b volume.Because) {
	record := a.journal.Get(decide.Key(f.Driver, f.Handle))
	for path, pod := range f.consumers {
		host, err := a.hostPath(pod)
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
			out = append(out, uniqueName(r.Driver, r.Handle))
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
		for _, pod := range a.pods.By(kube.PodsByClaim, kube.Key(c)) {
			a.addPod(pod)
		}
	})
	a.volumes.Watch(func(before, after *corev1.PersistentVolume) {
		for _, pv := range []*corev1.PersistentVolume{before, after} {
			if pv == nil || pv.Spec.CSI == nil || pv.Spec.ClaimRef == nil {
				continue
			}
			for _, pod := range a.pods.By(kube.PodsByClaim, pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name) {
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
	if before != nil && after != nil && alive(before) == alive(after) && before.UID == after.UID &&
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
	for _, u := range a.uses(pod) {
		a.work.add(u.key())
	}
	for _, r := range a.journal.List() {
		if slices.ContainsFunc(r.Targets, func(t decide.Target) bool { return t.PodUID == string(pod.UID) }) {
			a.work.add(r.Key())
		}
	}
	a.podQueue.Add(kube.Key(pod))
}

// nodeChanged looks at the volumes that were attached or detached, and notices
// when the Node was deleted under its agent.
func (a *Agent) nodeChanged(before, after *corev1.Node) {
	if after == nil || before != nil && nodelife.Ready(before) && !nodelife.Ready(after) {
		select {
		case a.lost <- struct{}{}:
		default:
		}
	}
	if after == nil {
		return
	}
	was := map[corev1.UniqueVolumeName]bool{}
	if before != nil {
		for _, v := range before.Status.VolumesAttached {
			was[v.Name] = true
		}
	}
	for _, v := range after.Status.VolumesAttached {
		if driver, handle, ok := split(v.Name); ok && !was[v.Name] {
			a.work.add(decide.Key(driver, handle))
		}
	}
}
