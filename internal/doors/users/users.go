package users

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/volumeusers"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

const (
	// lookEvery is the interval at which unused volumes are looked for.
	lookEvery = time.Minute
	// lookAgain is the interval at which the mount table is read while a mount is waited for: after a reboot, the node
	// agent mounts what its Pod has said all along.
	lookAgain = 250 * time.Millisecond
	// WhyLimit is how long an explanation may take, settleLimit how long one Pod is looked after.
	WhyLimit    = 2 * time.Second
	settleLimit = 50 * time.Second
)

// Users are those of the claims that one door has mounted on a node.
type Users struct {
	// Door is the name of the door in the log. ManagedBy is the value of volume.LabelMadeBy of its Pods, References and
	// Shown are their annotations: the users, and the mounts that were reported to users.
	Door, ManagedBy, References, Shown string
	// Namespace has the claims, and Node is where they are mounted.
	Namespace, Node string
	// Grace is how long a user counts who has nothing mounted.
	Grace  time.Duration
	Pods   kube.Writer[*corev1.Pod]
	Kernel Kernel
	// Why explains in a sentence what a Pod waits for; it may be nil.
	Why func(ctx context.Context, namespace, pod string) string
	Log *slog.Logger
	// Changed signals that an object has changed.
	Changed *kube.Signal
	// Look triggers a check for unused volumes; a pending trigger is kept.
	Look chan struct{}
}

// Kernel is the source of information about mounts.
type Kernel struct {
	// Mounted returns the mount at a path of this host.
	Mounted func(path string) (mount.Point, bool)
	// Copies returns which mounts are used elsewhere, too; see mount.FindCopies.
	Copies func(ctx context.Context, ours func(path string) bool) (of func(mount.Point) bool, err error)
	Now    func() time.Time
	// Boot is the id of the host's current boot.
	Boot string
}

// Take adds a user to those of a Pod, which is made if need be.
func (u *Users) Take(ctx context.Context, pod *corev1.Pod, id string) (*corev1.Pod, error) {
	pod.Namespace, pod.Labels = u.Namespace, map[string]string{volume.LabelMadeBy: u.ManagedBy}
	for {
		changed := u.Changed.Wait()
		now, exists := u.Pods.Get(cluster.Key(pod))
		if !exists {
			made, err := u.make(ctx, pod, id)
			if made != nil || err != nil {
				return made, err
			}
			continue
		}
		if !u.Owns(now) || doors.ClaimOf(now) != doors.ClaimOf(pod) {
			return nil, fmt.Errorf("pod %s is not of %s: delete it", now.Name, u.Door)
		}
		ends, err := u.join(ctx, now, id)
		if !ends && !IsGone(err) {
			return now, err
		}
		if !ends {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, u.Explained(context.WithoutCancel(ctx), now,
				fmt.Errorf("%w: it is still being unmounted for its last use", context.Cause(ctx)))
		}
	}
}

// join adds a user to those of a Pod that exists, unless the Pod ends: then the next one has to be waited for.
func (u *Users) join(ctx context.Context, pod *corev1.Pod, id string) (ends bool, err error) {
	switch {
	case pod.DeletionTimestamp != nil:
		return true, nil
	case cluster.Finished(pod):
		// It has failed, and was never mounted; its successor may succeed.
		err := u.Pods.Delete(ctx, pod, metav1.DeleteOptions{})
		return err == nil, err
	}
	return false, u.count(ctx, pod, func(refs volumeusers.References) (volumeusers.References, error) {
		return refs.Take(id, u.Kernel.Now())
	})
}

// Owns says whether a Pod is of this door.
func (u *Users) Owns(pod *corev1.Pod) bool { return pod.Labels[volume.LabelMadeBy] == u.ManagedBy }

// make returns nil if there is a Pod already, of an earlier life of this process, or of another one.
func (u *Users) make(ctx context.Context, pod *corev1.Pod, id string) (*corev1.Pod, error) {
	refs, err := volumeusers.References{}.Take(id, u.Kernel.Now())
	if err != nil {
		return nil, err
	}
	pod.Annotations = map[string]string{u.References: refs.String()}
	made, err := u.Pods.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		_, err = u.Pods.Look(ctx, pod.Namespace, pod.Name)
		return nil, err
	}
	return made, err
}

// errNotMounted says that a Pod's volume was not mounted in time.
var errNotMounted = errors.New("not in time")

// Await waits until the volume of a Pod is mounted, and returns where.
func (u *Users) Await(ctx context.Context, made *corev1.Pod) (string, error) {
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		changed := u.Changed.Wait()
		pod, exists := u.Pods.Get(cluster.Key(made))
		switch {
		case !exists || pod.UID != made.UID || pod.DeletionTimestamp != nil:
			return "", fmt.Errorf("pod %s was deleted", made.Name)
		case cluster.Finished(pod):
			return "", fmt.Errorf("pod %s has failed: %s", pod.Name, pod.Status.Message)
		}
		if path, s, ok := u.here(pod); ok {
			return path, u.remember(ctx, pod, s)
		}
		select {
		case <-changed:
		case <-ticker.C:
		case <-ctx.Done():
			if path := pathOf(pod); path != "" {
				return "", fmt.Errorf("it is mounted at %s on node %s, but this process does not see it there", path, u.Node)
			}
			return "", errNotMounted
		}
	}
}

// Fail takes back what Take has added, for a mount that has failed.
func (u *Users) Fail(ctx context.Context, pod *corev1.Pod, id string) error {
	return u.count(ctx, pod, func(refs volumeusers.References) (volumeusers.References, error) {
		return refs.Fail(id, u.Kernel.Now()), nil
	})
}

// Open fills the caches of a door, closes ready, and then follows what becomes of its users until ctx ends.
func (u *Users) Open(ctx context.Context, caches *kube.Caches, ready chan<- struct{}) {
	if err := caches.Start(ctx); err != nil {
		return
	}
	close(ready)
	u.Follow(ctx)
}

// Follow releases volumes that are no longer used, until ctx ends: immediately, on each trigger of Look, and every
// minute or grace.
func (u *Users) Follow(ctx context.Context) {
	ticker := time.NewTicker(min(lookEvery, u.Grace))
	defer ticker.Stop()
	for {
		u.SettleAll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-u.Look:
		}
	}
}

// LookSoon triggers a check, and does not wait for it.
func (u *Users) LookSoon() {
	select {
	case u.Look <- struct{}{}:
	default:
	}
}

// SettleAll releases the volumes that are no longer used.
func (u *Users) SettleAll(ctx context.Context) {
	seen := u.Survey()
	same := func(refs volumeusers.References) volumeusers.References { return refs }
	for _, pod := range u.Pods.List() {
		if !u.Owns(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		within, cancel := context.WithTimeout(ctx, settleLimit)
		if err := u.Settle(within, pod, seen, same); err != nil && ctx.Err() == nil {
			u.Log.Warn(u.Door+": a volume may stay mounted although no Pod uses it", "pod", pod.Name, "err", err)
		}
		cancel()
	}
}

// Settle changes the users of a Pod, and deletes it if it has none. The precondition of the deletion is the version
// for which that was decided, so that no user has been added since.
func (u *Users) Settle(
	ctx context.Context, pod *corev1.Pod, seen *Survey, next func(volumeusers.References) volumeusers.References,
) error {
	for {
		before, err := volumeusers.Parse(pod.Annotations[u.References])
		if err != nil {
			return err
		}
		f := volumeusers.Facts{References: next(before), Now: u.Kernel.Now(), Grace: u.Grace, Held: volumeusers.Unknown}
		if f.Asks() {
			f.Held = seen.held(ctx, pod)
		}
		plan := volumeusers.Decide(f)
		switch {
		case len(plan.References) == 0:
			uid, version := pod.UID, pod.ResourceVersion
			if err = u.Pods.Delete(ctx, pod, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
			}); err == nil {
				u.Log.Info(u.Door+": a volume is released", "claim", doors.ClaimOf(pod), "because", plan.Because)
			}
		case plan.References.String() != before.String():
			err = u.annotate(ctx, pod, map[string]any{u.References: plan.References.String()})
		}
		if pod, err = u.again(ctx, pod, err); pod == nil {
			return err
		}
	}
}

// count changes the users of a Pod. If the Pod is gone, or about to be, the error is errGone.
func (u *Users) count(
	ctx context.Context, pod *corev1.Pod, next func(volumeusers.References) (volumeusers.References, error),
) error {
	return u.change(ctx, pod, u.References, func(pod *corev1.Pod) (string, error) {
		refs, err := volumeusers.Parse(pod.Annotations[u.References])
		if err == nil {
			refs, err = next(refs)
		}
		return refs.String(), err
	})
}

// change changes an annotation of a Pod, of whatever version that is by then.
func (u *Users) change(
	ctx context.Context, pod *corev1.Pod, key string, next func(*corev1.Pod) (string, error),
) error {
	uid := pod.UID
	for {
		if pod.UID != uid || pod.DeletionTimestamp != nil {
			return errGone
		}
		text, err := next(pod)
		if err != nil || text == pod.Annotations[key] {
			return err
		}
		err = u.annotate(ctx, pod, map[string]any{key: text})
		if pod, err = u.again(ctx, pod, err); pod == nil {
			return err
		}
	}
}

// errGone says that a Pod is not there any more.
var errGone = errors.New("the pod is being deleted")

// IsGone says whether an error means that a Pod is not there any more.
func IsGone(err error) bool { return errors.Is(err, errGone) }

// again returns the newest version of a Pod if a write was refused because its version was an older one.
func (u *Users) again(ctx context.Context, pod *corev1.Pod, err error) (*corev1.Pod, error) {
	switch {
	case err == nil:
		return nil, nil
	case apierrors.IsNotFound(err):
		return nil, errGone
	case !apierrors.IsConflict(err):
		return nil, err
	}
	exists, err := u.Pods.Look(ctx, pod.Namespace, pod.Name)
	if err != nil {
		return nil, err
	}
	now, known := u.Pods.Get(cluster.Key(pod))
	if !exists || !known {
		return nil, errGone
	}
	return now, nil
}

// annotate writes annotations of a Pod of the version that it was read at.
func (u *Users) annotate(ctx context.Context, pod *corev1.Pod, annotations map[string]any) error {
	_, err := u.Pods.Patch(ctx, pod, types.MergePatchType, map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "annotations": annotations,
	}})
	return err
}

// Explain returns in a sentence what a Pod waits for, or "".
func (u *Users) Explain(ctx context.Context, pod *corev1.Pod) string {
	if u.Why != nil {
		within, cancel := context.WithTimeout(ctx, WhyLimit)
		defer cancel()
		if why := u.Why(within, pod.Namespace, pod.Name); why != "" {
			return why
		}
	}
	now, _ := u.Pods.Get(cluster.Key(pod))
	if now == nil {
		return ""
	}
	if c := cluster.PodCondition(now, volume.ConditionVolumesMounted); c != nil {
		return c.Message
	}
	return ""
}

// Explained adds to an error what a Pod waits for.
func (u *Users) Explained(ctx context.Context, pod *corev1.Pod, err error) error {
	if why := u.Explain(ctx, pod); why != "" {
		return fmt.Errorf("%w: %s", err, why)
	}
	return err
}
