package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/election"
	"volplane.dev/volplane/internal/volume"
)

// tenure acquires and renews one lease of a process. What it does is decided in package election, which says why never
// two processes hold a lease.
type tenure struct {
	*observer
	times election.Times
	// first is the tenure of the process's first lease; nil if this is the first one, or does not depend on it.
	first *tenure
	// until is when the process stops unless it renews the lease before. It counts from the start of a request, because
	// others may see its effect from then on.
	until atomic.Pointer[time.Time]
	// lease is the lease as this process wrote it last; nil if it is another's.
	lease *coordinationv1.Lease
	// reread is how many renewals had to read the lease first.
	reread atomic.Int64
	// waits tells while the lease is not acquired.
	waits *notice
}

// valid says whether this process is certain that it holds the lease.
func (t *tenure) valid() bool { return t.left() > 0 }

// left returns the time until the deadline.
func (t *tenure) left() time.Duration {
	if until := t.until.Load(); until != nil {
		return time.Until(*until)
	}
	return 0
}

// acquire returns when this process holds the lease, or when ctx has ended.
func (t *tenure) acquire(ctx context.Context) error {
	defer t.waits.stop()
	for {
		why := t.try(ctx)
		if why == "" {
			t.waits.over()
			// A process that was suspended meanwhile may have lost the leases that it had before.
			return ctx.Err()
		}
		t.waits.tell(why)
		again := time.NewTimer(wait.Jitter(t.times.Retry, 1.2))
		select {
		case <-ctx.Done():
			again.Stop()
			return ctx.Err()
		case <-t.news:
		case <-again.C:
		}
		again.Stop()
	}
}

// try makes one attempt to acquire the lease, and returns why it was in vain. A lease that was given back is not read
// again: the write names the version that the watch has shown, and fails if it is not the last.
func (t *tenure) try(ctx context.Context) (why string) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, t.times.Deadline/2)
	defer cancel()
	if back := t.givenBack(); back != nil && t.write(ctx, back, began) == nil && t.valid() {
		return ""
	}
	now, err := t.read(ctx)
	if err != nil {
		return "it cannot be read: " + err.Error()
	}
	f := t.facts(now)
	// The order matters: the first lease must have been held when this one was read.
	if t.first != nil && t.first.valid() {
		f.Holds = t.first.Name
	}
	plan := election.Acquire(f)
	if !plan.Take {
		return plan.Because
	}
	if err := t.write(ctx, now, began); err != nil {
		return "it cannot be written: " + err.Error()
	}
	if !t.valid() {
		return fmt.Sprintf("its acquisition took longer than %v", t.times.Deadline)
	}
	return ""
}

func (t *tenure) facts(now *coordinationv1.Lease) election.Facts {
	f := election.Facts{Me: t.Identity, Unchanged: t.unchanged(now)}
	f.Holder, f.Duration = held(now)
	if now != nil {
		f.Mark = now.Annotations[volume.AnnHeldWith]
	}
	return f
}

// read returns the lease; nil if there is none.
func (t *tenure) read(ctx context.Context) (*coordinationv1.Lease, error) {
	now, err := t.Renewed.Get(ctx, t.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return now, err
}

// errDeadline says that a lease was not renewed in time.
var errDeadline = errors.New("it could not be renewed before the deadline")

// keep renews the lease until ctx ends. It calls lose if the lease is lost, and says why: at the deadline, even if a
// request hangs.
func (t *tenure) keep(ctx context.Context, lose context.CancelCauseFunc) {
	lapse := time.AfterFunc(t.left(), func() { lose(errDeadline) })
	defer lapse.Stop()
	pause := t.times.Renew
	var last error
	for {
		due := time.NewTimer(min(pause, t.left()))
		select {
		case <-ctx.Done():
			due.Stop()
			return
		case <-t.news:
		case <-due.C:
		}
		due.Stop()
		began, left := time.Now(), t.left()
		if left <= 0 {
			lose(errors.Join(errDeadline, last))
			return
		}
		var lost bool
		if lost, last = t.renew(ctx, began, left); lost {
			lose(last)
			return
		}
		pause = t.times.Again(t.left())
		if last == nil {
			pause = t.times.Renew
			lapse.Reset(t.left())
		}
	}
}

// renew makes one attempt to renew the lease. It reads the lease only if it is not as it was written last.
func (t *tenure) renew(ctx context.Context, began time.Time, left time.Duration) (lost bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.times.Limit(left))
	defer cancel()
	if err = t.write(ctx, t.lease, began); !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return false, err
	}
	now, err := t.read(ctx)
	if err != nil {
		return false, err
	}
	plan := election.Keep(t.facts(now))
	if !plan.Take {
		t.lease = nil
		return true, errors.New(plan.Because)
	}
	t.reread.Add(1)
	err = t.write(ctx, now, began)
	return false, err
}

// write writes this process into a version of the lease, or creates it if that is nil.
func (t *tenure) write(ctx context.Context, now *coordinationv1.Lease, began time.Time) error {
	var written *coordinationv1.Lease
	var err error
	if next := t.next(now); now == nil {
		written, err = t.Renewed.Create(ctx, next, metav1.CreateOptions{})
	} else {
		written, err = t.Renewed.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	t.lease = written
	until := began.Add(t.times.Deadline)
	t.until.Store(&until)
	t.see(written)
	return nil
}

// next returns the lease as this process writes it.
func (t *tenure) next(now *coordinationv1.Lease) *coordinationv1.Lease {
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: t.Name}}
	if now != nil {
		next = now.DeepCopy()
	}
	if len(t.Labels) > 0 && next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, t.Labels)
	delete(next.Annotations, volume.AnnHeldWith)
	if t.first != nil {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnHeldWith, election.Mark(t.first.Name, t.Identity))
	}
	at := metav1.NowMicro()
	if holder, _ := held(now); holder != t.Identity {
		next.Spec.AcquireTime = &at
		if now != nil {
			next.Spec.LeaseTransitions = ptr.To(ptr.Deref(now.Spec.LeaseTransitions, 0) + 1)
		}
	}
	next.Spec.HolderIdentity, next.Spec.RenewTime = &t.Identity, &at
	next.Spec.LeaseDurationSeconds = ptr.To(int32(t.times.Duration / time.Second))
	return next
}

// release gives the lease back if this process still holds it, so that another one can acquire it at once. It reads the
// lease only if it is not as it was written last. If this fails, the lease expires.
func (t *tenure) release(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if t.lease != nil && !apierrors.IsConflict(t.giveBack(ctx, t.lease)) {
		return
	}
	now, err := t.read(ctx)
	if holder, _ := held(now); err != nil || holder != t.Identity {
		return
	}
	_ = t.giveBack(ctx, now)
}

// giveBack takes this process out of a version of the lease.
func (t *tenure) giveBack(ctx context.Context, now *coordinationv1.Lease) error {
	at := metav1.NowMicro()
	next := now.DeepCopy()
	delete(next.Annotations, volume.AnnHeldWith)
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds = ptr.To(""), ptr.To[int32](1)
	next.Spec.AcquireTime, next.Spec.RenewTime = &at, &at
	_, err := t.Renewed.Update(ctx, next, metav1.UpdateOptions{})
	t.lease = nil
	return err
}
