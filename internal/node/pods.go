package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

const (
	// podWorkers is how many Pods are written to the API at once.
	podWorkers = 16
	// patience is how long a Pod waits for something that is under way before
	// its condition says so. Most mounts are done by then, and one write
	// instead of two tells everything.
	patience = time.Second
)

func (a *Agent) runPods(ctx context.Context) {
	stop := context.AfterFunc(ctx, a.podQueue.ShutDown)
	defer stop()
	var workers sync.WaitGroup
	for range podWorkers {
		workers.Go(func() {
			for a.nextPod(ctx) {
			}
		})
	}
	workers.Wait()
}

func (a *Agent) nextPod(ctx context.Context) bool {
	key, closed := a.podQueue.Get()
	if closed {
		return false
	}
	defer a.podQueue.Done(key)
	switch err := a.syncPod(ctx, key); {
	case err == nil:
		a.podQueue.Forget(key)
	case ctx.Err() == nil:
		if !apierrors.IsConflict(err) {
			a.Log.Warn("pod cannot be written, will be tried again", "consumer", key, "err", err)
		}
		a.podQueue.AddRateLimited(key)
	}
	return true
}

// syncPod tells a Pod what became of its volumes, or deletes it when it is to
// go and has none any more.
func (a *Agent) syncPod(ctx context.Context, key string) error {
	pod, ok := a.pods.Get(key)
	if !ok {
		return nil
	}
	if pod.DeletionTimestamp != nil {
		return a.deletePod(ctx, pod)
	}
	if !uses.Alive(pod) {
		return nil
	}
	ready, b, own := a.podState(pod)
	if wait := a.patienceLeft(pod, ready, b.Reason); wait > 0 {
		a.podQueue.AddAfter(key, wait)
		return nil
	}
	changed, err := a.writeCondition(ctx, pod, ready, b)
	if changed && own && b.Next == "user" {
		a.Events.Warn(pod, b)
	}
	return err
}

// podState returns whether all volumes of the Pod are mounted, and where, or
// why not; own says that it is for what the Pod itself says, and not for what
// became of a volume.
func (a *Agent) podState(pod *corev1.Pod) (ready bool, why volume.Because, own bool) {
	refused := ""
	host, _, err := a.finder.HostPath(pod)
	if err != nil {
		refused = err.Error()
	}
	var places []decide.Place
	for _, u := range a.finder.Of(pod) {
		p := decide.Place{Name: u.Name, Because: u.Why}
		own = own || u.PV == nil
		if u.PV != nil {
			target := uses.TargetPath(a.RootDir, string(pod.UID), u.PV.Name, uses.IsBlock(u.PV))
			p.Path = uses.PlacePath(a.RootDir, string(pod.UID), u.PV.Name, uses.IsBlock(u.PV))
			p.Served, p.Because = served(a.journal.Get(u.Key()).Target(target), host), a.reasonOf(u.Key())
		}
		places = append(places, p)
	}
	ready, why = decide.Pod(refused, places)
	return ready, why, own || refused != ""
}

func (a *Agent) reasonOf(key string) volume.Because {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.told[key]
}

// patienceLeft says how long a Pod's condition is not written yet, because
// what it would say may have changed in a moment.
func (a *Agent) patienceLeft(pod *corev1.Pod, ready bool, r volume.Reason) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	uid := string(pod.UID)
	under := r == volume.ReasonMounting || r == volume.ReasonWaitForAttach || r == volume.ReasonWaitForBind || r == volume.ReasonUnmounting
	if ready || !under {
		delete(a.seen, uid)
		return 0
	}
	if uses.Mounted(pod) != nil {
		return 0
	}
	first, ok := a.seen[uid]
	if !ok {
		first = time.Now()
		a.seen[uid] = first
	}
	return patience - time.Since(first)
}

// writeCondition says in the Pod's status what podState found, and returns
// whether that is a change. The UID keeps it from another Pod of the same name.
func (a *Agent) writeCondition(ctx context.Context, pod *corev1.Pod, ready bool, b volume.Because) (changed bool, err error) {
	want := corev1.PodCondition{
		Type: volume.ConditionVolumesMounted, Status: corev1.ConditionFalse,
		Reason: string(b.Reason), Message: b.Message,
	}
	var reason any
	if ready {
		want.Status, reason = corev1.ConditionTrue, string(volume.ReasonMounted)
	}
	same := follows(&want, uses.Mounted(pod))
	says, next := []corev1.PodCondition{want}, map[string]string{volume.AnnNextMounted: b.Next}
	if h, who := a.podHealth(pod); h != nil {
		same = follows(h, uses.Condition(pod, h.Type)) && same
		says, next[volume.AnnNextHealthy] = append(says, *h), who
	}
	notes := map[string]any{}
	for name, who := range next {
		if same = same && pod.Annotations[name] == who; who == "" {
			notes[name] = nil
			continue
		}
		notes[name] = who
	}
	if same {
		return false, nil
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": notes},
		"status":   map[string]any{"reason": reason, "conditions": says},
	})
	if err != nil {
		return false, fmt.Errorf("write condition of pod %s: %w", cluster.Key(pod), err)
	}
	written, err := a.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("write condition of pod %s: %w", cluster.Key(pod), err)
	}
	a.pods.Wrote(written)
	return true, nil
}

// follows gives a condition the time since when it is so, and says whether it says
// the same as the one before.
func follows(now, before *corev1.PodCondition) (same bool) {
	now.LastTransitionTime = metav1.Now()
	if before == nil {
		return false
	}
	if now.Status == before.Status {
		now.LastTransitionTime = before.LastTransitionTime
	}
	return now.Status == before.Status && now.Reason == before.Reason && now.Message == before.Message
}

// deletePod lets a Pod go when none of its volumes is left here. The API
// server keeps it until then.
func (a *Agent) deletePod(ctx context.Context, pod *corev1.Pod) error {
	for _, r := range a.journal.List() {
		if slices.ContainsFunc(r.Targets, func(t decide.Target) bool { return t.PodUID == string(pod.UID) }) {
			return nil
		}
	}
	a.mu.Lock()
	delete(a.seen, string(pod.UID))
	a.mu.Unlock()
	a.tokens.forget(string(pod.UID))
	err := a.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s: %w", cluster.Key(pod), err)
	}
	return nil
}
