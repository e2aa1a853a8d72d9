package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	decide "volplane.dev/volplane/internal/decide/lease"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/volume"
)

// lease is one of the leases of a candidate.
type lease struct {
	*Client
	name  string
	times decide.Times
	// first is the first lease of the candidate; nil if this is the first one, or does not depend on it.
	first *lease
	log   *slog.Logger
	// waits logs why the lease is not acquired yet.
	waits *lifecycle.Wait
	// news receives a value when this process has to act: the lease can be acquired, or this process held it, and now the
	// lease is gone or names another holder.
	news chan struct{}
	// own is the lease as this process wrote it last; nil if it is another's.
	own *coordinationv1.Lease

	mu sync.Mutex
	sighting
	// held says that this process holds the lease, as far as it knows.
	held bool
	// until is when the process stops unless it renews the lease before, by Client.now. It counts from the start of a
	// request, because others may see its effect from then on.
	until time.Time
	// rereads is how many renewals had to read the lease first.
	rereads int64
}

// see records what the lease says; nil if there is none.
func (l *lease) see(now *coordinationv1.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	holder, _ := holderOf(now)
	if l.sighting.see(now) && holder != l.identity && (l.held || holder == "") {
		lifecycle.Wake(l.news)
	}
}

// holds records whether this process holds the lease, and drops older news.
func (l *lease) holds(held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = held
	select {
	case <-l.news:
	default:
	}
}

// left returns the time until the deadline.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until.Sub(l.now())
}

// valid says whether this process is certain that it holds the lease.
func (l *lease) valid() bool { return l.left() > 0 }

// during acquires the lease, calls work while this process holds it, and gives it back within a limit. It returns done
// if work has returned by itself or ctx has ended, and not if the lease was lost.
func (l *lease) during(
	ctx context.Context, limit time.Duration, work func(context.Context) error,
) (done bool, err error) {
	l.holds(false)
	defer l.release(ctx, limit)
	if l.acquire(ctx) != nil {
		return true, nil
	}
	l.holds(true)
	l.log.Info("lease is held")
	held, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	// The lease is renewed until work has stopped, also when ctx has ended.
	renewed, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer stop()
	renewing.Go(func() { l.keep(renewed, lose) })
	err = work(held)
	if held.Err() == nil || ctx.Err() != nil {
		return true, err
	}
	l.log.Warn("lease is lost, waiting to acquire it again", "why", context.Cause(held), "err", err)
	return false, err
}

// pause returns after a time, or when there is news; false if ctx has ended.
func (l *lease) pause(ctx context.Context, most time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-l.news:
	case <-time.After(most):
	}
	return true
}

// acquire returns when this process holds the lease, or when ctx has ended.
func (l *lease) acquire(ctx context.Context) error {
	defer l.waits.Stop()
	for {
		plan := l.try(ctx)
		if plan.Take {
			l.waits.Over()
			// A process that was suspended in between may have lost the leases that it had before.
			return ctx.Err()
		}
		l.waits.For(plan.Because)
		again := wait.Jitter(l.times.Retry, 1.2)
		if plan.Wait > 0 {
			again = min(again, plan.Wait)
		}
		if !l.pause(ctx, again) {
			return ctx.Err()
		}
	}
}

// try makes one attempt to acquire the lease: a Plan to take it has been carried out. A lease that was given back is
// not read again: the write names the version that the watch has shown, and fails if it is not the last.
func (l *lease) try(ctx context.Context) decide.Plan {
	began := l.now()
	ctx, cancel := context.WithTimeout(ctx, l.times.Deadline/2)
	defer cancel()
	if free := l.free(); free != nil && l.write(ctx, free, began) == nil && l.valid() {
		return decide.Plan{Take: true}
	}
	now, err := l.read(ctx)
	if err != nil {
		return decide.Plan{Because: "it cannot be read: " + err.Error()}
	}
	plan := decide.Next(l.facts(now))
	if !plan.Take {
		return plan
	}
	if err := l.write(ctx, now, began); err != nil {
		return decide.Plan{Because: "it cannot be written: " + err.Error()}
	}
	if !l.valid() {
		return decide.Plan{Because: fmt.Sprintf("its acquisition took longer than %v", l.times.Deadline)}
	}
	return plan
}

// free returns the lease as it was seen last if it has no holder, and nil if it has one or does not exist.
func (l *lease) free() *coordinationv1.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if holder, _ := holderOf(l.last); holder != "" {
		return nil
	}
	return l.last
}

// facts returns what is known of the lease, which has just been read.
func (l *lease) facts(now *coordinationv1.Lease) decide.Facts {
	l.see(now)
	l.mu.Lock()
	defer l.mu.Unlock()
	f := decide.Facts{Me: l.identity, Former: l.Former, Held: l.held, Unchanged: time.Since(l.since)}
	f.Holder, f.Duration = holderOf(now)
	if now != nil {
		f.Mark = now.Annotations[volume.AnnHeldWith]
	}
	// The first lease must have been held when this one was read.
	if l.first != nil && l.first.valid() {
		f.Holds = l.first.name
	}
	return f
}

// read returns the lease; nil if there is none.
func (l *lease) read(ctx context.Context) (*coordinationv1.Lease, error) {
	now, err := l.leases.Get(ctx, l.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return now, err
}

// errDeadline says that a lease was not renewed in time.
var errDeadline = errors.New("it could not be renewed before the deadline")

// keep renews the lease until ctx ends. It calls lose if the lease is lost, and says why: at the deadline, even if a
// request hangs.
func (l *lease) keep(ctx context.Context, lose context.CancelCauseFunc) {
	lapse := time.AfterFunc(l.left(), func() { lose(errDeadline) })
	defer lapse.Stop()
	next := l.times.Renew
	var last error
	for l.pause(ctx, min(next, l.left())) {
		began, left := l.now(), l.left()
		if left <= 0 {
			lose(errors.Join(errDeadline, last))
			return
		}
		var lost bool
		if lost, last = l.renew(ctx, began, left); lost {
			lose(last)
			return
		}
		next = l.times.Again(l.left())
		if last == nil {
			next = l.times.Renew
			lapse.Reset(l.left())
		}
	}
}

// renew makes one attempt to renew the lease. It reads the lease only if it is not as it was written last.
func (l *lease) renew(ctx context.Context, began time.Time, left time.Duration) (lost bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.times.Limit(left))
	defer cancel()
	if err = l.write(ctx, l.own, began); !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return false, err
	}
	now, err := l.read(ctx)
	if err != nil {
		return false, err
	}
	plan := decide.Next(l.facts(now))
	if !plan.Take {
		l.own = nil
		return true, errors.New(plan.Because)
	}
	l.mu.Lock()
	l.rereads++
	l.mu.Unlock()
	return false, l.write(ctx, now, began)
}

// write writes this process into a version of the lease, or creates it if that is nil.
func (l *lease) write(ctx context.Context, now *coordinationv1.Lease, began time.Time) (err error) {
	written := l.next(now)
	if now == nil {
		written, err = l.leases.Create(ctx, written, metav1.CreateOptions{})
	} else {
		written, err = l.leases.Update(ctx, written, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	l.own = written
	l.see(written)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = began.Add(l.times.Deadline)
	return nil
}

// next returns the lease as this process writes it.
func (l *lease) next(now *coordinationv1.Lease) *coordinationv1.Lease {
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: l.name}}
	if now != nil {
		next = now.DeepCopy()
	}
	if len(l.labels) > 0 && next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, l.labels)
	delete(next.Annotations, volume.AnnHeldWith)
	if l.first != nil {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnHeldWith, decide.Mark(l.first.name, l.identity))
	}
	at := metav1.NowMicro()
	if holder, _ := holderOf(now); holder != l.identity {
		next.Spec.AcquireTime = &at
		if now != nil {
			next.Spec.LeaseTransitions = ptr.To(ptr.Deref(now.Spec.LeaseTransitions, 0) + 1)
		}
	}
	next.Spec.HolderIdentity, next.Spec.RenewTime = &l.identity, &at
	next.Spec.LeaseDurationSeconds = ptr.To(int32(l.times.Duration / time.Second))
	return next
}

// release gives the lease back if this process still holds it, so that another one can acquire it immediately. It reads
// the lease only if it is not as it was written last. If this fails, the lease expires.
func (l *lease) release(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if l.own != nil && !apierrors.IsConflict(l.giveBack(ctx, l.own)) {
		return
	}
	now, err := l.read(ctx)
	if holder, _ := holderOf(now); err == nil && holder == l.identity {
		_ = l.giveBack(ctx, now)
	}
}

// giveBack takes this process out of a version of the lease.
func (l *lease) giveBack(ctx context.Context, now *coordinationv1.Lease) error {
	at := metav1.NowMicro()
	next := now.DeepCopy()
	delete(next.Annotations, volume.AnnHeldWith)
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds = ptr.To(""), ptr.To[int32](1)
	next.Spec.AcquireTime, next.Spec.RenewTime = &at, &at
	_, err := l.leases.Update(ctx, next, metav1.UpdateOptions{})
	l.own = nil
	return err
}

// now returns the time of a clock that keeps running while the host is suspended. The monotonic clock of package time
// stops then, but leases expire, and other processes acquire them.
func (c *Client) now() time.Time { return time.Now().Add(c.asleep()) }

// asleep returns how long the host has been suspended since it was started.
func asleep() time.Duration {
	var all, awake unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &all) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
		return 0
	}
	return time.Duration(all.Nano() - awake.Nano())
}
