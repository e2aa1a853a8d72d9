package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"volplane.dev/volplane/internal/decide/election"
	"volplane.dev/volplane/internal/sidecar"
)

// Lead acquires all locks in their order, calls run while it holds them (S3-031),
// and releases them in the reverse order after run has returned, so that this
// process has stopped working before another one can acquire them. All processes
// must use the same order, so that they cannot deadlock. When a lock is lost, run's
// context ends, and Lead starts acquiring again. All locks are watched from the
// start, so those of a process that died expire together. Lead returns when ctx has
// ended, or with the error of run if run returns by itself.
func Lead(
	ctx context.Context, locks []WatchedLock, t sidecar.Term, log *slog.Logger, run func(context.Context) error,
) error {
	return new(Leadership).Lead(ctx, locks, t, log, run)
}

// Lead is the function Lead, of which l tells others.
func (l *Leadership) Lead(
	ctx context.Context, locks []WatchedLock, t sidecar.Term, log *slog.Logger, run func(context.Context) error,
) error {
	if len(locks) == 0 {
		return run(ctx)
	}
	all, err := tenures(locks, t, log)
	if err != nil {
		return err
	}
	l.stand(all)
	watched, stop := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	for _, one := range all {
		watching.Go(func() { one.run(watched) })
	}
	// Several that cannot be given back must not outlast the time that a process has to end.
	e := electorate{log: log, limit: all[0].times.Deadline / 2 / time.Duration(len(all))}
	return e.leadInOrder(ctx, all, func(held context.Context) error {
		l.begin(all)
		defer l.end()
		if !l.certain() {
			<-held.Done()
			return nil
		}
		return run(held)
	})
}

// tenures returns those of the locks, of which the first is for the others what Term.LongOthers says.
func tenures(locks []WatchedLock, t sidecar.Term, log *slog.Logger) ([]*tenure, error) {
	times, err := election.First(t.Duration, t.Deadline, t.Retry)
	if err != nil {
		return nil, err
	}
	all := make([]*tenure, 0, len(locks))
	for i, s := range locks {
		one := &tenure{observer: newObserver(s), times: times}
		if i > 0 && t.LongOthers {
			one.times, one.first = election.Other(times), all[0]
		}
		one.waits = newNotice(log.With("lease", s.Namespace+"/"+s.Name), "waiting for the lease")
		all = append(all, one)
	}
	return all, nil
}

// electorate is what the steps of Lead share.
type electorate struct {
	log *slog.Logger
	// limit is the time limit of giving back one lease.
	limit time.Duration
}

func (e electorate) leadInOrder(ctx context.Context, all []*tenure, run func(context.Context) error) error {
	if len(all) == 0 {
		return run(ctx)
	}
	for {
		done, err := e.leadOnce(ctx, all[0], func(held context.Context) error {
			return e.leadInOrder(held, all[1:], run)
		})
		if done || ctx.Err() != nil {
			return err
		}
	}
}

// leadOnce acquires one lease and calls run while it holds the lease. It returns done
// if run has returned by itself or ctx has ended.
func (e electorate) leadOnce(ctx context.Context, t *tenure, run func(context.Context) error) (done bool, err error) {
	t.holds(false)
	defer t.release(ctx, e.limit)
	if t.acquire(ctx) != nil {
		return true, nil
	}
	t.holds(true)
	log := e.log.With("lease", t.Namespace+"/"+t.Name)
	log.Info("lease is held")
	// The lease is renewed until run has stopped, also when ctx has ended.
	renewed, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	held, lose := context.WithCancelCause(renewed)
	defer lose(nil)
	over := make(chan struct{})
	go func() {
		defer close(over)
		t.keep(renewed, lose)
	}()
	if done, err = work(ctx, held, run); !done {
		log.Warn("lease is lost, waiting to acquire it again", "why", context.Cause(held), "err", err)
	}
	stop()
	<-over
	return done, err
}

// work calls run with a context that ends with the first of the two contexts. It
// says whether the lease was still held when run returned.
func work(ctx, held context.Context, run func(context.Context) error) (done bool, err error) {
	both, end := context.WithCancel(held)
	defer end()
	defer context.AfterFunc(ctx, end)()
	if ctx.Err() != nil {
		// The function runs on a goroutine of its own, and may be late.
		end()
	}
	err = run(both)
	return held.Err() == nil, err
}

// Leadership says whether a process leads, for its health endpoint and its metrics.
type Leadership struct {
	mu   sync.Mutex
	held []*tenure
	// all are those of all leases, held or not.
	all []*tenure
}

// Held says of each lease for which the process stands whether it holds it.
func (l *Leadership) Held() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]bool{}
	for _, t := range l.all {
		out[t.Name] = len(l.held) > 0
	}
	return out
}

// Reread says of each of these leases how many renewals had to read it first.
func (l *Leadership) Reread() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]int64{}
	for _, t := range l.all {
		out[t.Name] = t.reread.Load()
	}
	return out
}

func (l *Leadership) stand(all []*tenure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = all
}

func (l *Leadership) begin(all []*tenure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = all
}

func (l *Leadership) end() { l.begin(nil) }

// certain says whether no lease under which the process works can be another's. After a suspension the clock knows that
// before the timers of the leases have ended the work.
func (l *Leadership) certain() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !slices.ContainsFunc(l.held, func(one *tenure) bool { return !one.valid() })
}

// grace is how long after the end of its lease a leader may still work before Check fails. It is upstream's.
const grace = 20 * time.Second

var errStillWorks = errors.New("this process leads, and has not renewed its lease for its duration and 20s")

// Check fails if the process works although it has not renewed its lease for its duration and upstream's grace.
func (l *Leadership) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.held {
		if t.left() < -(t.times.Duration - t.times.Deadline + grace) {
			return errStillWorks
		}
	}
	return nil
}
