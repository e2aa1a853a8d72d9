package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Lead waits until each of the locks is held, in their order, which must be the
// same for all: of processes that want several none waits for another that waits
// for it. It runs while all of them are held (S3-031). When one is lost run's
// context ends, and the waiting begins again. All are watched from the beginning:
// those of a process that has gone run out together. The locks are given back in the
// reverse order when run has returned, so that nothing works any more when another
// process takes them. It returns when ctx has ended, or run has returned by
// itself, with its error.
func Lead(ctx context.Context, locks []WatchedLock, t Term, log *slog.Logger, run func(context.Context) error) error {
	watched, stop := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	observers := make([]*observer, 0, len(locks))
	for _, s := range locks {
		o := observe(s)
		observers = append(observers, o)
		watching.Go(func() { o.run(watched) })
	}
	return t.lead(ctx, observers, log, run)
}

func (t Term) lead(ctx context.Context, locks []*observer, log *slog.Logger, run func(context.Context) error) error {
	if len(locks) == 0 {
		return run(ctx)
	}
	log = log.With("lease", locks[0].Describe())
	for {
		done, err := t.once(ctx, locks[0], log, func(held context.Context) error {
			return t.lead(held, locks[1:], log, run)
		})
		if done || ctx.Err() != nil {
			return err
		}
	}
}

// Term says how a lease is held.
type Term struct {
	// Duration is how long others wait after the last sign of the holder;
	// Deadline is how long the holder goes on without being able to give one,
	// and Retry the pause between signs and between attempts.
	Duration, Deadline, Retry time.Duration
}

// once waits for one lease and runs while it is held. It says whether nothing is
// left to do: run has returned by itself, or ctx has ended.
func (t Term) once(
	ctx context.Context, lock *observer, log *slog.Logger, run func(context.Context) error,
) (done bool, err error) {
	// It must go on holding the lease while run stops.
	elect, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	last := time.AfterFunc(t.Deadline, stop)
	defer last.Stop()
	last.Stop()
	begin, over := make(chan context.Context, 1), make(chan struct{})
	lock.forget()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: signs{lock, last, t.Deadline}, LeaseDuration: t.Duration, RenewDeadline: t.Deadline, RetryPeriod: t.Retry,
		// ReleaseOnCancel would give the lease back before run's context ends.
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) { begin <- held },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return true, fmt.Errorf("lead by %s: %w", lock.Describe(), err)
	}
	go func() {
		defer close(over)
		elector.Run(elect)
	}()
	select {
	case <-ctx.Done():
		done = true
	case <-lock.free:
		// A new elector makes its first attempt now.
	case held := <-begin:
		log.Info("lease is held")
		if done, err = work(ctx, held, run); !done {
			log.Warn("lease is lost, waiting for it again", "err", err)
		}
	}
	stop()
	<-over
	t.release(ctx, lock)
	return done, err
}

// signs is a lock whose holder stops when the deadline is over since the last
// sign that it could give. The elector itself counts from the attempt after that
// one, which with upstream's usual times is as long as others wait: they would
// begin while this process ends its work.
type signs struct {
	resourcelock.Interface
	last     *time.Timer
	deadline time.Duration
}

func (s signs) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return s.give(func() error { return s.Interface.Create(ctx, r) })
}

func (s signs) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return s.give(func() error { return s.Interface.Update(ctx, r) })
}

func (s signs) give(write func() error) error {
	until := time.Now().Add(s.deadline)
	err := write()
	if err == nil {
		s.last.Reset(time.Until(until))
	}
	return err
}

// work runs until the first of the two contexts ends, or by itself.
func work(ctx, held context.Context, run func(context.Context) error) (done bool, err error) {
	both, end := context.WithCancel(held)
	defer end()
	defer context.AfterFunc(ctx, end)()
	err = run(both)
	return held.Err() == nil, err
}

// release lets another process take the lock at once, if it is still held. One
// that is not given back runs out by itself.
func (t Term) release(ctx context.Context, lock resourcelock.Interface) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.Deadline)
	defer cancel()
	record, _, err := lock.Get(ctx)
	if err != nil || record.HolderIdentity != lock.Identity() {
		return
	}
	now := metav1.Now()
	_ = lock.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaseDurationSeconds: 1, LeaderTransitions: record.LeaderTransitions, AcquireTime: now, RenewTime: now,
	})
}
