package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// process is a candidate for leases of which the first is short.
type process struct {
	*party
	*Candidate
	// slow is how long its work takes to end.
	slow time.Duration
	// works receives when the process begins to work, and told when its work is told to end.
	works, told chan struct{}
	log         strings.Builder
}

// competition is a test with processes that never may work at the same time.
type competition struct {
	*testing.T
	*leaseServer
	working atomic.Int64
}

// compete plays a test in virtual time.
func compete(t *testing.T, play func(*competition)) {
	synctest.Test(t, func(t *testing.T) {
		play(&competition{T: t, leaseServer: newLeaseServer()})
		// The last requests end.
		<-time.After(time.Minute)
	})
}

func (c *competition) start(name string, leases ...string) *process {
	c.Helper()
	p := &process{works: make(chan struct{}, 100), told: make(chan struct{}, 100)}
	party, ctx := newParty(c.leaseServer, name, 1)
	p.party, p.Candidate = party, party.candidate(c, longTerm, slog.New(slog.NewTextHandler(&p.log, nil)), leases...)
	p.run(ctx, c, p.Candidate, func(ctx context.Context) error {
		if n := c.working.Add(1); n > 1 {
			c.Errorf("%d work at the same time", n)
		}
		p.works <- struct{}{}
		<-ctx.Done()
		p.told <- struct{}{}
		<-time.After(p.slow)
		c.working.Add(-1)
		return nil
	})
	return p
}

// away keeps a process from reaching the server for a while.
func (p *process) away(d time.Duration, only string) {
	p.wire.set(func() { p.wire.away, p.wire.only = time.Now().Add(d), only })
}

// leads says whether a process works as the leader.
func (p *process) leads() bool { return slices.Contains(slices.Collect(maps.Values(p.Held())), true) }

// within fails the test unless a time is between two others.
func (c *competition) within(what string, took, least, most time.Duration) {
	c.Helper()
	if took < least || took > most {
		c.Errorf("%s %v, want %v to %v", what, took, least, most)
	}
}

func sixLeases() []string { return []string{"l0", "l1", "l2", "l3", "l4", "l5"} }

// requests is how long a few requests take that are not late.
const requests = 100 * time.Millisecond

// TestOneLeads: the second process works as soon as the first has ended its work, and not before (S3-031).
func TestOneLeads(t *testing.T) {
	compete(t, func(c *competition) {
		a := c.start("a", "l")
		<-a.works
		a.slow = 40 * time.Second
		b := c.start("b", "l")
		<-time.After(time.Minute)
		ended := time.Now()
		a.stop()
		<-b.works
		c.within("after the first was told to end, the second works after", time.Since(ended), a.slow, a.slow+requests)
		b.stop()
	})
}

// TestLeaderIsLost: a leader that cannot reach the API server ends its work before another one works, says that it does
// not lead, and leads again when no other does.
func TestLeaderIsLost(t *testing.T) {
	compete(t, func(c *competition) {
		a := c.start("a", sixLeases()...)
		<-a.works
		a.slow = usualTerm.Duration - usualTerm.Deadline - time.Second
		b := c.start("b", sixLeases()...)
		<-time.After(time.Minute)
		if !a.leads() || b.leads() {
			c.Errorf("a leads: %v, b leads: %v", a.leads(), b.leads())
		}
		lost := time.Now()
		a.away(time.Minute, "")
		<-a.told
		told := time.Now()
		c.within("without the server it works for", told.Sub(lost), 0, usualTerm.Deadline)
		<-b.works
		c.within("another one works later by", time.Since(told), usualTerm.Duration-usualTerm.Deadline-requests, time.Minute)
		// It looks with pauses of up to 2.2 times the retry period, and waits for the duration since it last saw a sign.
		c.within("another one works after", time.Since(lost), 0, usualTerm.Duration+5*usualTerm.Retry)
		if a.leads() || !b.leads() || a.Check() != nil {
			c.Errorf("a leads: %v (%v), b leads: %v", a.leads(), a.Check(), b.leads())
		}
		<-time.After(time.Minute)
		b.stop()
		<-a.works
		a.stop()
	})
}

// TestLeadByTwo: a process works only while it holds all leases, and gives all of them back.
func TestLeadByTwo(t *testing.T) {
	compete(t, func(c *competition) {
		other := c.start("other", "second")
		<-other.works
		a := c.start("a", "first", "second")
		<-time.After(time.Minute)
		other.stop()
		<-a.works
		a.away(time.Minute, "first")
		<-a.told
		if holder := c.holder("second"); holder != "a" {
			c.Errorf("%q holds the second lease when the first is lost", holder)
		}
		<-a.works
		a.stop()
		if first, second := c.holder("first"), c.holder("second"); first != "" || second != "" {
			c.Errorf("%q and %q hold the leases at the end", first, second)
		}
	})
}

// TestTakeOver: after the death of a process that held all leases, two others wait for the expiry of all leases at the
// same time, and not of one after the other; then one of them leads.
func TestTakeOver(t *testing.T) {
	for _, n := range []int{1, 3, 7} {
		compete(t, func(c *competition) {
			var names []string
			die, dead := context.WithCancel(c.Context())
			for i := range n {
				names = append(names, fmt.Sprint("lease-", i))
				go func() {
					<-time.After(time.Duration(i) * usualTerm.Retry / time.Duration(n))
					for die.Err() == nil {
						c.hold(c.T, names[i], "gone", usualTerm.Duration)
						select {
						case <-die.Done():
						case <-time.After(usualTerm.Retry):
						}
					}
				}()
			}
			<-time.After(usualTerm.Retry)
			a, b := c.start("a", names...), c.start("b", names...)
			<-time.After(10 * time.Minute)
			if c.working.Load() != 0 {
				c.Error("one works beside a living leader")
			}
			dead()
			<-time.After(usualTerm.Duration - usualTerm.Retry - time.Second)
			if c.working.Load() != 0 {
				c.Error("one works too soon")
			}
			<-time.After(2*usualTerm.Retry + time.Second)
			if c.working.Load() != 1 {
				c.Errorf("with %d leases %d work", n, c.working.Load())
			}
			a.stop()
			b.stop()
		})
	}
}

// TestWorkEndsByItself: Run returns the error of the work and releases the lease.
func TestWorkEndsByItself(t *testing.T) {
	compete(t, func(c *competition) {
		p, ctx := newParty(c.leaseServer, "a", 1)
		broken := errors.New("broken")
		err := p.candidate(c, usualTerm, slog.New(slog.DiscardHandler), "l").Run(ctx, func(context.Context) error {
			return broken
		})
		if !errors.Is(err, broken) || c.holder("l") != "" {
			c.Errorf("got %v, and %q holds the lease", err, c.holder("l"))
		}
	})
}

// TestTakeOverOfLongLeases: after the leader was killed, another process takes over when the short lease has expired,
// and not when the long ones have; after the leader was told to end, within a second, with two writes of each lease and
// no read but one that was due.
func TestTakeOverOfLongLeases(t *testing.T) {
	compete(t, func(c *competition) {
		a := c.start("a", sixLeases()...)
		<-a.works
		b := c.start("b", sixLeases()...)
		<-time.After(time.Hour)
		before := c.writes
		<-time.After(time.Hour)
		if n := c.writes - before; n > 12*60 {
			c.Errorf("%d writes in an hour", n)
		}
		a.away(time.Minute, "")
		killed := time.Now()
		a.kill()
		<-b.works
		c.within("after the leader was killed, another one works after", time.Since(killed), 0, 20*time.Second)
		d := c.start("d", sixLeases()...)
		<-time.After(time.Minute)
		ended, writes, reads := time.Now(), c.writes, c.reads
		b.stop()
		<-d.works
		c.within("after the leader was told to end, another one works after", time.Since(ended), 0, time.Second)
		if w, r := c.writes-writes, c.reads-reads; w > 2*len(sixLeases())+1 || r > 1 {
			c.Errorf("%d writes and %d reads hand %d leases over", w, r, len(sixLeases()))
		}
		d.stop()
		for _, name := range sixLeases() {
			if l, err := c.get(name); err != nil || c.holder(name) != "" || l.Labels["team"] != "storage" {
				c.Errorf("lease %s: %v %v", name, l, err)
			}
		}
	})
}

// TestUpstreamWaitsForLongLeases: a candidate for a long lease alone gets it after its duration.
func TestUpstreamWaitsForLongLeases(t *testing.T) {
	compete(t, func(c *competition) {
		a := c.start("a", sixLeases()...)
		<-a.works
		other := c.start("other", sixLeases()[3])
		<-time.After(time.Hour)
		killed := time.Now()
		a.kill()
		<-other.works
		c.within("after a kill, it works after", time.Since(killed), 25*time.Second, 2*time.Minute+5*time.Second)
		if l, err := c.get("l3"); err != nil || l.Annotations[volume.AnnHeldWith] != "" {
			c.Errorf("its lease says that it works only with another one: %v %v", l, err)
		}
		other.stop()
	})
}

// TestLeaseDeletedByHand: the leader creates a lease that was deleted, and stops immediately when another process was
// faster.
func TestLeaseDeletedByHand(t *testing.T) {
	for _, name := range []string{"l0", "l4"} {
		compete(t, func(c *competition) {
			a := c.start("a", sixLeases()...)
			<-a.works
			<-time.After(time.Minute)
			c.remove(name)
			<-time.After(time.Second)
			if c.holder(name) != "a" || len(a.told) > 0 {
				c.Errorf("%s holds %s a second after it was deleted, stopped: %d", c.holder(name), name, len(a.told))
			}
			if n := a.Reread(); len(n) != 6 || n[name] != 1 || n["l1"] != 0 {
				c.Errorf("renewals that had to read their lease: %v, want one of %s", n, name)
			}
			c.remove(name)
			taken := time.Now()
			c.hold(c.T, name, "other", usualTerm.Duration)
			<-a.told
			c.within("beside another holder it works for", time.Since(taken), 0, 2*requests)
			<-a.works
			c.within("it works again after", time.Since(taken), 15*time.Second, 30*time.Second)
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
			compete(t, func(c *competition) {
				began := time.Now()
				if _, err := c.put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
					Name: at, Annotations: map[string]string{volume.AnnHeldWith: "/"},
				}, Spec: row.spec}, true); err != nil {
					c.Fatal(err)
				}
				a := c.start("a", sixLeases()...)
				<-a.works
				c.within(name+" in "+at+": it works after", time.Since(began), row.waits, row.waits+12*time.Second)
				told := strings.Contains(a.log.String(), "level=INFO msg=\"waiting for the lease\" lease=default/"+at+
					" why=\"x holds it, which need not renew it for 1m0s\" since=5s")
				if told != (row.waits > 0) {
					c.Errorf("%s in %s: the log is\n%s", name, at, a.log.String())
				}
				a.stop()
			})
		}
	}
}

// TestCheckOfStuckLeader: a leader that goes on working without its lease is unhealthy after the lease and 20 seconds.
func TestCheckOfStuckLeader(t *testing.T) {
	compete(t, func(c *competition) {
		p := c.start("a", "l")
		p.slow = time.Hour
		<-time.After(time.Minute)
		p.away(time.Hour, "")
		<-p.told
		<-time.After(usualTerm.Duration - usualTerm.Deadline + 19*time.Second)
		if err := p.Check(); err != nil || !p.leads() {
			c.Errorf("it is unhealthy too soon: %v", err)
		}
		<-time.After(2 * time.Second)
		if p.Check() == nil {
			c.Error("it is healthy")
		}
		p.stop()
		if err := p.Check(); err != nil {
			c.Error(err)
		}
	})
}

// until changes until when a candidate is certain of one of its leases.
func (c *Candidate) until(i int, at time.Time) {
	c.leases[i].mu.Lock()
	defer c.leases[i].mu.Unlock()
	c.leases[i].until = at
}

// TestLongLeaseNeedsFirst: a process that is not certain to hold its first lease takes no long one because of it.
func TestLongLeaseNeedsFirst(t *testing.T) {
	compete(t, func(c *competition) {
		a := c.start("a", sixLeases()...)
		<-a.works
		party, _ := newParty(c.leaseServer, "b", 2)
		b := party.candidate(c, longTerm, slog.New(slog.DiscardHandler), sixLeases()...)
		for _, left := range []time.Duration{-time.Second, time.Minute} {
			b.until(0, time.Now().Add(left))
			if plan := b.leases[1].try(c.Context()); plan.Take != (left > 0) {
				c.Errorf("with a first lease until %v from now: %+v", left, plan)
			}
		}
		a.stop()
	})
}

// TestCertain: a process that works is certain of its leases by the clock, before a timer has ended its work.
func TestCertain(t *testing.T) {
	compete(t, func(c *competition) {
		p := c.start("a", sixLeases()...)
		<-p.works
		if !p.certain() {
			c.Error("a process that has just acquired its leases is not certain of them")
		}
		p.until(0, time.Now().Add(-time.Nanosecond))
		if p.certain() {
			c.Error("a process is certain of leases of which one was to be renewed before")
		}
		p.stop()
	})
}

// TestSuspendedHost: a holder whose host was suspended for longer than its lease lasts, while its clock stood still, is
// not certain of its leases when the host resumes. It ends its work at the next renewal, and works again if no other
// process has acquired them.
func TestSuspendedHost(t *testing.T) {
	compete(t, func(c *competition) {
		p := c.start("a", sixLeases()...)
		<-p.works
		p.wire.asleep.Store(int64(usualTerm.Deadline))
		if p.certain() {
			c.Error("a process is certain of leases that ended while its host was suspended")
		}
		resumed := time.Now()
		<-p.told
		c.within("its work is told to end after", time.Since(resumed), 0, p.leases[0].times.Renew)
		<-p.works
		if !p.certain() {
			c.Error("a process that has acquired its leases again is not certain of them")
		}
		p.stop()
	})
}

// TestTimesWithoutOrder: times without order are an error.
func TestTimesWithoutOrder(t *testing.T) {
	term := usualTerm
	term.Deadline = term.Duration
	client := newClient(nil, "default", "a", nil)
	if _, err := client.Candidate([]string{"l"}, term, slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "lease duration") {
		t.Errorf("got %v", err)
	}
}
