package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// process is one that leads with six leases, of which the first is short.
type process struct {
	*party
	Leadership
	// works receives when the process begins to work, and stopped when its work ends.
	works, stopped chan struct{}
	log            strings.Builder
}

func sixLeases() []string { return []string{"l0", "l1", "l2", "l3", "l4", "l5"} }

func startProcess(t *testing.T, s *leaseServer, name string, leases []string) *process {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	p := &process{
		party: &party{name: name, wire: newWire(s, 1), end: end, ended: make(chan struct{})},
		works: make(chan struct{}, 100), stopped: make(chan struct{}, 100),
	}
	var locks []WatchedLock
	for _, l := range leases {
		lock := p.wire.lock(l, name)
		lock.Labels = map[string]string{"team": "storage"}
		locks = append(locks, lock)
	}
	go func() {
		defer close(p.ended)
		err := p.Lead(ctx, locks, longTerm(), slog.New(slog.NewTextHandler(&p.log, nil)), func(ctx context.Context) error {
			p.works <- struct{}{}
			<-ctx.Done()
			p.stopped <- struct{}{}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}()
	return p
}

func (p *process) stop() {
	p.party.end()
	<-p.ended
}

// TestTakeOverOfLongLeases: after the leader was killed, another process takes over when the short lease has expired,
// and not when the long ones have; after the leader was told to end, at once, with two writes of each lease and no read
// but one that was due.
func TestTakeOverOfLongLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := startProcess(t, s, "a", sixLeases())
		<-a.works
		b := startProcess(t, s, "b", sixLeases())
		<-time.After(time.Hour)
		before := s.writes
		<-time.After(time.Hour)
		if n := s.writes - before; n > 12*60 {
			t.Errorf("%d writes in an hour", n)
		}
		a.wire.set(func() { a.wire.away = time.Now().Add(time.Minute) })
		killed := time.Now()
		a.kill()
		<-b.works
		if took := time.Since(killed); took > 20*time.Second {
			t.Errorf("another one works %v after the leader was killed", took)
		}
		c := startProcess(t, s, "c", sixLeases())
		<-time.After(time.Minute)
		ended, writes, reads := time.Now(), s.writes, s.reads
		b.stop()
		<-c.works
		if took := time.Since(ended); took > time.Second {
			t.Errorf("another one works %v after the leader was told to end", took)
		}
		if w, r := s.writes-writes, s.reads-reads; w > 2*len(sixLeases())+1 || r > 1 {
			t.Errorf("%d writes and %d reads hand %d leases over", w, r, len(sixLeases()))
		}
		c.stop()
		for _, name := range sixLeases() {
			if l, err := s.get(name); err != nil || s.holder(name) != "" || l.Labels["team"] != "storage" {
				t.Errorf("lease %s: %v %v", name, l, err)
			}
		}
	})
}

// TestUpstreamWaitsForLongLeases: whoever wants a long lease alone gets it after its duration, and at once if it was
// given back.
func TestUpstreamWaitsForLongLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := startProcess(t, s, "a", sixLeases())
		<-a.works
		other := startProcess(t, s, "other", sixLeases()[3:4])
		<-time.After(time.Hour)
		killed := time.Now()
		a.kill()
		<-other.works
		if took := time.Since(killed); took < 25*time.Second || took > 2*time.Minute+5*time.Second {
			t.Errorf("it works %v after the leader was killed", took)
		}
		if l, err := s.get("l3"); err != nil || l.Annotations[volume.AnnHeldWith] != "" {
			t.Errorf("its lease says that it works only with another one: %v %v", l, err)
		}
		other.stop()
	})
}

// TestLeaseDeletedByHand: the leader creates a lease anew that somebody has deleted, and stops at once when another one
// was faster.
func TestLeaseDeletedByHand(t *testing.T) {
	for _, name := range []string{"l0", "l4"} {
		synctest.Test(t, func(t *testing.T) {
			s := newLeaseServer()
			a := startProcess(t, s, "a", sixLeases())
			<-a.works
			<-time.After(time.Minute)
			s.remove(name)
			<-time.After(time.Second)
			if s.holder(name) != "a" || len(a.stopped) > 0 {
				t.Errorf("%s holds %s a second after it was deleted, stopped: %d", s.holder(name), name, len(a.stopped))
			}
			if n := a.Reread(); len(n) != 6 || n[name] != 1 || n["l1"] != 0 {
				t.Errorf("renewals that had to read their lease: %v, want one of %s", n, name)
			}
			s.remove(name)
			taken := time.Now()
			theirs := coordinationv1.LeaseSpec{HolderIdentity: ptr.To("other"), LeaseDurationSeconds: ptr.To[int32](15)}
			_, err := s.put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: theirs}, true)
			if err != nil {
				t.Fatal(err)
			}
			<-a.stopped
			if took := time.Since(taken); took > 200*time.Millisecond {
				t.Errorf("it works for %v after another one has taken %s", took, name)
			}
			<-a.works
			if took := time.Since(taken); took < 15*time.Second || took > 30*time.Second {
				t.Errorf("it works again after %v", took)
			}
			a.stop()
		})
	}
}

// TestGarbageInLease: what a lease lacks is as for client-go, and a holder of another clock is believed for as long as
// it says.
func TestGarbageInLease(t *testing.T) {
	year := func(n int) *metav1.MicroTime {
		return ptr.To(metav1.NewMicroTime(time.Date(n, 1, 1, 0, 0, 0, 0, time.UTC)))
	}
	x, minute := ptr.To("x"), ptr.To[int32](60)
	for name, row := range map[string]struct {
		spec  coordinationv1.LeaseSpec
		waits time.Duration
	}{
		"nothing":             {coordinationv1.LeaseSpec{}, 0},
		"no holder":           {coordinationv1.LeaseSpec{LeaseDurationSeconds: minute, RenewTime: year(2100)}, 0},
		"no duration":         {coordinationv1.LeaseSpec{HolderIdentity: x, RenewTime: year(2100)}, 0},
		"a negative duration": {coordinationv1.LeaseSpec{HolderIdentity: x, LeaseDurationSeconds: ptr.To[int32](-60)}, 0},
		"no renewal":          {coordinationv1.LeaseSpec{HolderIdentity: x, LeaseDurationSeconds: minute}, time.Minute},
		"a future renewal": {coordinationv1.LeaseSpec{
			HolderIdentity: x, LeaseDurationSeconds: minute, RenewTime: year(2100), AcquireTime: year(1900),
		}, time.Minute},
		"an old renewal": {coordinationv1.LeaseSpec{
			HolderIdentity: x, LeaseDurationSeconds: minute, RenewTime: year(1),
		}, time.Minute},
	} {
		for _, at := range []string{"l0", "l2"} {
			synctest.Test(t, func(t *testing.T) {
				s, began := newLeaseServer(), time.Now()
				if _, err := s.put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
					Name: at, Annotations: map[string]string{volume.AnnHeldWith: "/"},
				}, Spec: row.spec}, true); err != nil {
					t.Fatal(err)
				}
				a := startProcess(t, s, "a", sixLeases())
				<-a.works
				if took := time.Since(began); took < row.waits || took > row.waits+12*time.Second {
					t.Errorf("%s in %s: it works after %v", name, at, took)
				}
				told := strings.Contains(a.log.String(), "level=INFO msg=\"waiting for the lease\" lease=default/"+at+
					" why=\"x holds it, which need not renew it for 1m0s\" since=5s")
				if told != (row.waits > 0) {
					t.Errorf("%s in %s: the log is\n%s", name, at, a.log.String())
				}
				a.stop()
			})
		}
	}
}

// leads says whether a process works as the leader.
func leads(l *Leadership) bool { return slices.Contains(slices.Collect(maps.Values(l.Held())), true) }

// TestServerAwayFromLeader: a leader that cannot reach the API server stops before another one works, says that it does
// not lead, and leads again later.
func TestServerAwayFromLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := startProcess(t, s, "a", sixLeases())
		<-a.works
		b := startProcess(t, s, "b", sixLeases())
		<-time.After(time.Minute)
		if !leads(&a.Leadership) || leads(&b.Leadership) {
			t.Errorf("a leads: %v, b leads: %v", leads(&a.Leadership), leads(&b.Leadership))
		}
		away := time.Now()
		a.wire.set(func() { a.wire.away = away.Add(time.Minute) })
		<-a.stopped
		stopped := time.Now()
		if took := stopped.Sub(away); took > usualTerm.Deadline {
			t.Errorf("it works for %v without the server", took)
		}
		<-b.works
		if took := time.Since(stopped); took < usualTerm.Duration-usualTerm.Deadline-100*time.Millisecond {
			t.Errorf("another one works %v later", took)
		}
		if leads(&a.Leadership) || !leads(&b.Leadership) || a.Check() != nil {
			t.Errorf("a leads: %v (%v), b leads: %v", leads(&a.Leadership), a.Check(), leads(&b.Leadership))
		}
		<-time.After(time.Minute)
		b.stop()
		<-a.works
		a.stop()
	})
}

// TestCheckOfStuckLeader: a leader that goes on working without its lease is unhealthy after the lease and 20 seconds.
func TestCheckOfStuckLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Leadership
		w := newWire(newLeaseServer(), 1)
		lost, end := make(chan struct{}), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- l.Lead(ctx, []WatchedLock{w.lock("l", "a")}, longTerm(), slog.New(slog.DiscardHandler),
				func(ctx context.Context) error {
					<-ctx.Done()
					close(lost)
					<-end
					return nil
				})
		}()
		<-time.After(time.Minute)
		w.set(func() { w.away = time.Now().Add(time.Hour) })
		<-lost
		<-time.After(usualTerm.Duration - usualTerm.Deadline + 19*time.Second)
		if err := l.Check(); err != nil || !leads(&l) {
			t.Errorf("it is unhealthy too soon: %v", err)
		}
		<-time.After(2 * time.Second)
		if l.Check() == nil {
			t.Error("it is healthy")
		}
		cancel()
		close(end)
		if err := <-ended; err != nil || l.Check() != nil {
			t.Error(err, l.Check())
		}
	})
}

// TestLongLeaseNeedsFirst: a process that is not certain to hold its first lease takes no long one because of it.
func TestLongLeaseNeedsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := startProcess(t, s, "a", sixLeases())
		<-a.works
		var locks []WatchedLock
		for _, name := range sixLeases() {
			locks = append(locks, newWire(s, 2).lock(name, "b"))
		}
		all, err := tenures(locks, longTerm(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for _, until := range []time.Duration{-time.Second, time.Minute} {
			all[0].until.Store(ptr.To(time.Now().Add(until)))
			if why := all[1].try(t.Context()); (why == "") != (until > 0) {
				t.Errorf("with a first lease until %v from now: %q", until, why)
			}
		}
		a.stop()
	})
}

// TestCertain: a process that works is certain of its leases by the clock, before a timer has ended its work.
func TestCertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, newLeaseServer(), "a", sixLeases())
		<-p.works
		if !p.certain() {
			t.Error("a process that has just acquired its leases is not certain of them")
		}
		p.held[0].until.Store(ptr.To(time.Now().Add(-time.Nanosecond)))
		if p.certain() {
			t.Error("a process is certain of leases of which one was to be renewed before")
		}
		p.stop()
	})
}

// TestTimesOfLead: times without order are an error.
func TestTimesOfLead(t *testing.T) {
	term := usualTerm
	term.Deadline = term.Duration
	err := Lead(t.Context(), []WatchedLock{{}}, term, slog.New(slog.DiscardHandler), func(context.Context) error {
		return fmt.Errorf("it runs")
	})
	if err == nil || !strings.Contains(err.Error(), "lease duration") {
		t.Errorf("got %v", err)
	}
}
