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

	"volplane.dev/volplane/internal/program"
)

// Lead acquires all locks in their order, calls run while it holds them (S3-031),
// and releases them in the reverse order after run has returned, so that this
// process has stopped working before another one can acquire them. All processes
// must use the same order, so that they cannot deadlock. When a lock is lost, run's
// context ends, and Lead starts acquiring again. All locks are watched from the
// start, so those of a process that died expire together. Lead returns when ctx has
// ended, or with the error of run if run returns by itself.
func Lead(
	ctx context.Context, locks []WatchedLock, t program.Term, log *slog.Logger, run func(context.Context) error,
) error {
	watched, stop := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	observers := make([]*observer, 0, len(locks))
	for _, s := range locks {
		o := newObserver(s)
		observers = append(observers, o)
		watching.Go(func() { o.run(watched) })
	}
	return leadInOrder(ctx, t, observers, log, run)
}

func leadInOrder(
	ctx context.Context, t program.Term, locks []*observer, log *slog.Logger, run func(context.Context) error,
) error {
	if len(locks) == 0 {
		return run(ctx)
	}
	log = log.With("lease", locks[0].Describe())
	for {
		done, err := leadOnce(ctx, t, locks[0], log, func(held context.Context) error {
			return leadInOrder(held, t, locks[1:], log, run)
		})
		if done || ctx.Err() != nil {
			return err
		}
	}
}

// leadOnce acquires one lease and calls run while it holds the lease. It returns done
// if run has returned by itself or ctx has ended.
func leadOnce(
	ctx context.Context, t program.Term, lock *observer, log *slog.Logger, run func(context.Context) error,
) (done bool, err error) {
	// The elector must hold the lease until run has stopped.
	elect, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	last := time.AfterFunc(t.Deadline, stop)
	defer last.Stop()
	last.Stop()
	begin, over := make(chan context.Context, 1), make(chan struct{})
	lock.drainFree()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          renewalDeadline{lock, last, t.Deadline},
		LeaseDuration: t.Duration, RenewDeadline: t.Deadline, RetryPeriod: t.Retry,
		// ReleaseOnCancel would release the lease before run has returned.
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
			log.Warn("lease is lost, waiting to acquire it again", "err", err)
		}
	}
	stop()
	<-over
	release(ctx, t.Deadline, lock)
	return done, err
}

// renewalDeadline is a lock that stops its holder when the deadline has passed since
// the start of the last successful renewal. The elector itself counts from the attempt
// after that renewal; with upstream's usual times, that can be as late as the moment
// at which other processes acquire the lock.
type renewalDeadline struct {
	resourcelock.Interface
	last     *time.Timer
	deadline time.Duration
}

func (s renewalDeadline) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return s.renew(func() error { return s.Interface.Create(ctx, r) })
}

func (s renewalDeadline) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return s.renew(func() error { return s.Interface.Update(ctx, r) })
}

func (s renewalDeadline) renew(write func() error) error {
	until := time.Now().Add(s.deadline)
	err := write()
	if err == nil {
		s.last.Reset(time.Until(until))
	}
	return err
}

// work calls run with a context that ends with the first of the two contexts. It
// says whether the lease was still held when run returned.
func work(ctx, held context.Context, run func(context.Context) error) (done bool, err error) {
	both, end := context.WithCancel(held)
	defer end()
	defer context.AfterFunc(ctx, end)()
	err = run(both)
	return held.Err() == nil, err
}

// release releases the lock if it is still held, so that another process can acquire
// it at once. If this fails, the lock expires.
func release(ctx context.Context, limit time.Duration, lock resourcelock.Interface) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
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
