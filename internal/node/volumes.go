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
		f, err := a.gather(key)
		if err != nil {
			return err
		}
		plan := decide.Volume(f.Facts)
		failed, err := a.apply(ctx, f, plan)
		if err != nil && ctx.Err() == nil && !errors.Is(err, errNotYet) {
			plan.Because = decide.Failed(failed, describe(err), "node "+a.Name)
			a.warn(f, plan.Because)
		}
		a.tell(f, plan.Because)
		if err != nil || len(plan.Actions) == 0 {
			return err
		}
	}
	return nil
}

// apply carries the actions out in order until one fails, and says which.
func (a *Agent) apply(ctx context.Context, f *facts, plan decide.Plan) (decide.Verb, error) {
	d := &deed{a: a, f: f, rec: f.Record.Clone()}
	for _, action := range plan.Actions {
		if err := d.do(ctx, action); err != nil {
			return action.Verb, errors.Join(err, d.flush())
		}
	}
	return "", d.flush()
}

func (d *deed) do(ctx context.Context, action decide.Action) error {
	switch action.Verb {
	case decide.MarkInUse:
		return d.a.inUse.set(ctx, uniqueName(d.f.Driver, d.f.Handle), true)
	case decide.CheckAttached:
		return d.checkAttached(ctx)
	case decide.Stage:
		return d.stage(ctx)
	case decide.Publish:
		return d.publish(ctx, action.Path)
	case decide.Bind:
		return d.bind(action.Path)
	case decide.Grow:
		return d.grow(ctx)
	case decide.Unbind:
		return d.unbind(action.Path)
	case decide.Unpublish:
		return d.unpublish(ctx, action.Path)
	case decide.Unstage:
		return d.unstage(ctx)
	case decide.UnmarkInUse:
		return d.a.inUse.set(ctx, uniqueName(d.f.Driver, d.f.Handle), false)
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
func (a *Agent) warn(f *facts, b volume.Because) {
	switch {
	case b.Reason == volume.ReasonFailedNodeResize:
		a.Events.Warn(f.claim, b)
	case b.Reason == volume.ReasonFailedMount:
		a.warnWaiting(f, b)
	case f.Record != nil:
		for _, t := range f.Record.Targets {
			if pod, ok := a.pods.ByUID(t.PodUID); ok && f.consumers[t.Path] == nil {
				a.Events.Warn(pod, b)
			}
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
		out = append(out, uniqueName(r.Driver, r.Handle))
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
