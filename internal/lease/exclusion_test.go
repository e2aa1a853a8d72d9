package lease

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/sidecar"
)

// longestCall is how long a call of a driver takes: it ends before others may lead.
const longestCall = 4 * time.Second

// arena is a driver of which several processes are the controllers, in parts.
type arena struct {
	t      *rapid.T
	server *leaseServer

	mu sync.Mutex
	// calling holds, by lease, those whose call under it is in flight.
	calling map[string][]string
	// called counts the calls by lease and process.
	called map[string]int
	faults []string
}

// call makes calls under these leases until ctx ends.
func (a *arena) call(ctx context.Context, w *wire, who string, under []string) {
	for w.resume() && ctx.Err() == nil {
		a.enter(who, under)
		w.mu.Lock()
		takes := time.Duration(w.rand.Int64N(int64(longestCall)))
		if w.rand.IntN(3) > 0 {
			takes = 50 * time.Millisecond
		}
		w.mu.Unlock()
		<-time.After(takes)
		a.leave(who, under)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (a *arena) enter(who string, under []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range under {
		a.calling[l] = append(a.calling[l], who)
		a.called[l]++
		if len(a.calling[l]) > 1 {
			a.faults = append(a.faults, fmt.Sprintf("%v call under %s at once", a.calling[l], l))
		}
	}
}

func (a *arena) leave(who string, under []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range under {
		at := slices.Index(a.calling[l], who)
		a.calling[l] = slices.Delete(a.calling[l], at, at+1)
	}
}

// ours starts a process of this package with these leases.
func (a *arena) ours(name string, seed uint64, term sidecar.Term, leases []string) *party {
	p, ctx := a.start(name, seed)
	p.run(ctx, a.t, p.candidate(a.t, term, slog.New(slog.DiscardHandler), leases...), func(ctx context.Context) error {
		a.call(ctx, p.wire, name, leases)
		<-ctx.Done()
		return nil
	})
	return p
}

// start returns a process whose clock is another one.
func (a *arena) start(name string, seed uint64) (*party, context.Context) {
	p, ctx := newParty(a.server, name, seed)
	p.wire.step()
	return p, ctx
}

// upstreams starts a sidecar with client-go's elector. Its deadline leaves time for the end of a call, which upstream's
// does not. All sidecars of a Pod have the same identity.
func (a *arena) upstreams(name string, seed uint64, lease string) *party {
	p, ctx := a.start(name, seed)
	p.wire.prompt = true
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: lease}, Client: getter{p.wire},
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 8 * time.Second, RetryPeriod: 2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { a.call(ctx, p.wire, name+":"+lease, []string{lease}) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		for ctx.Err() == nil {
			elector.Run(ctx)
			// The process ends, and its Pod starts another one.
			<-time.After(longestCall)
		}
	}()
	return p
}

type getter struct{ w *wire }

func (g getter) Leases(string) typedcoordinationv1.LeaseInterface { return g.w }

// arenaLeases are the leases in their order.
func arenaLeases() []string { return []string{"l0", "l1", "l2"} }

// TestNeverTwoCall: processes with the leases of several roles, whose first one is short and whose others are long,
// older ones whose leases are all short, and upstream's sidecars with one lease each are killed, told to end, suspended
// and cut off from the API server; requests and answers are late or lost; all clocks differ, and are set while
// processes run. Never do two call under one lease, and when all is healthy again every lease has a holder that calls.
func TestNeverTwoCall(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		seed := rapid.Uint64().Draw(r, "seed")
		faults := rapid.SampledFrom([]float64{0, 0.02, 0.2}).Draw(r, "faults")
		kinds := rapid.SliceOfN(rapid.IntRange(0, 4), 2, 5).Draw(r, "parties")
		steps := rapid.SliceOfN(rapid.IntRange(0, 5), 5, 40).Draw(r, "steps")
		synctest.Test(t, func(*testing.T) { play(r, seed, faults, kinds, steps) })
	})
}

func play(r *rapid.T, seed uint64, faults float64, kinds, steps []int) {
	rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
	a := &arena{t: r, server: newLeaseServer(), calling: map[string][]string{}, called: map[string]int{}}
	n, pods := 0, map[string]int{}
	begin := func(kind int) *party {
		n++
		name := fmt.Sprint("p", n)
		var p *party
		switch kind {
		case 0, 1:
			p = a.ours(name, rng.Uint64(), longTerm, arenaLeases())
		case 2:
			first := rng.IntN(2)
			p = a.ours(name, rng.Uint64(), longTerm, arenaLeases()[first:2+rng.IntN(2)])
		case 3:
			p = a.ours(name, rng.Uint64(), usualTerm, arenaLeases())
		default:
			// The sidecars of a Pod have its name.
			lease := arenaLeases()[rng.IntN(3)]
			p = a.upstreams(fmt.Sprint("pod-", pods[lease]), rng.Uint64(), lease)
			pods[lease]++
		}
		p.wire.faults = faults
		return p
	}
	var all []*party
	for _, kind := range kinds {
		all = append(all, begin(kind))
	}
	for _, step := range steps {
		<-time.After(time.Duration(rng.IntN(60000)) * time.Millisecond)
		at := rng.IntN(len(all))
		p, long := all[at], time.Duration(rng.IntN(200000))*time.Millisecond
		switch {
		case step == 0:
			p.kill()
			all[at] = begin(rng.IntN(5))
		case step == 1:
			p.stop()
			all[at] = begin(rng.IntN(5))
		case step == 2 && p.ours:
			// client-go's elector does not notice that its process was suspended until its next request.
			p.wire.set(func() { p.wire.suspended = time.Now().Add(long) })
		case step == 3:
			p.wire.set(func() { p.wire.away = time.Now().Add(long) })
		case step == 4:
			p.wire.step()
		}
	}
	a.finish(all, func() *party { return begin(0) })
}

// finish ends all but one process that wants every lease, and checks that it gets them.
func (a *arena) finish(all []*party, last func() *party) {
	for _, p := range all {
		p.kill()
	}
	p := last()
	p.wire.set(func() { p.wire.faults = 0 })
	<-time.After(3 * time.Minute)
	a.mu.Lock()
	clear(a.called)
	a.mu.Unlock()
	<-time.After(10 * time.Second)
	p.stop()
	// The last calls and requests of processes that were killed end.
	<-time.After(5 * time.Minute)
	for _, l := range arenaLeases() {
		if a.called[l] == 0 {
			a.t.Errorf("nobody calls under %s", l)
		}
	}
	for _, fault := range a.faults {
		a.t.Error(fault)
	}
}
