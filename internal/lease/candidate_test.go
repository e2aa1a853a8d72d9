package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/sidecar"
)

// lock is a lease whose requests can be made to hang.
type lock struct {
	WatchedLock
	away atomic.Bool
}

var errAway = errors.New("the server does not answer")

// server is the API server as a lock reaches it.
type server struct {
	typedcoordinationv1.LeaseInterface
	*lock
}

func (s server) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if s.away.Load() {
		return nil, noAnswer(ctx)
	}
	return s.LeaseInterface.Get(ctx, name, o)
}

func (s server) Update(
	ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	if s.away.Load() {
		return nil, noAnswer(ctx)
	}
	return s.LeaseInterface.Update(ctx, l, o)
}

// noAnswer is the result of a request without an answer: the client's time limit is half of
// the deadline.
func noAnswer(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-time.After(usualTerm.Deadline / 2):
	}
	return errAway
}

func newLock(client kubernetes.Interface, name, identity string) *lock {
	leases := client.CoordinationV1().Leases("default")
	return &lock{WatchedLock: WatchedLock{
		Namespace: "default", Name: name, Identity: identity, Renewed: leases, Leases: leases,
	}}
}

// watched returns the lock as an argument of Lead.
func (l *lock) watched() WatchedLock {
	w := l.WatchedLock
	w.Renewed = server{l.Renewed, l}
	return w
}

// write writes a record as client-go's elector does.
func (l *lock) write(t *testing.T, holder string, duration time.Duration) {
	t.Helper()
	now := metav1.NowMicro()
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name}}
	before, err := l.Leases.Get(context.Background(), l.Name, metav1.GetOptions{})
	write := func() error {
		_, err := l.Leases.Create(context.Background(), next, metav1.CreateOptions{})
		return err
	}
	if err == nil {
		next = before
		write = func() error {
			_, err := l.Leases.Update(context.Background(), next, metav1.UpdateOptions{})
			return err
		}
	}
	next.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: ptr.To(int32(duration / time.Second)), RenewTime: &now,
	}
	if err := write(); err != nil {
		t.Error(err)
	}
}

// usualTerm are the default times of the CSI sidecars.
var usualTerm = sidecar.Term{Duration: 15 * time.Second, Deadline: 10 * time.Second, Retry: 5 * time.Second}

// leader is a process that competes for leases.
type leader struct {
	*lock
	// slow is how long its work takes to end.
	slow time.Duration
	// from is when it began to work for the last time.
	from   atomic.Pointer[time.Time]
	cancel func()
	ended  chan error
}

// lead starts a process; working counts the processes that work.
func lead(t *testing.T, working *atomic.Int64, l *leader, more ...*lock) *leader {
	ctx, cancel := context.WithCancel(t.Context())
	l.cancel, l.ended = cancel, make(chan error, 1)
	locks := []WatchedLock{l.watched()}
	for _, m := range more {
		locks = append(locks, m.watched())
	}
	go func() {
		l.ended <- Lead(ctx, locks, usualTerm, slog.New(slog.DiscardHandler), func(ctx context.Context) error {
			if n := working.Add(1); n > 1 {
				t.Errorf("%d work at once", n)
			}
			now := time.Now()
			l.from.Store(&now)
			<-ctx.Done()
			<-time.After(l.slow)
			working.Add(-1)
			return nil
		})
	}()
	return l
}

// until waits until a process has started to work, and returns how long that took since
// a moment.
func (l *leader) until(t *testing.T, after time.Time) time.Duration {
	t.Helper()
	for range 1000 {
		<-time.After(100 * time.Millisecond)
		synctest.Wait()
		if from := l.from.Load(); from != nil && !from.Before(after) {
			return from.Sub(after)
		}
	}
	t.Fatal("it never leads")
	return 0
}

// TestOneLeads: the second process works after the first has ended its work, and not
// before (S3-031).
func TestOneLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var working atomic.Int64
		a := lead(t, &working, &leader{lock: newLock(client, "l", "a"), slow: 40 * time.Second})
		a.until(t, time.Time{})
		b := lead(t, &working, &leader{lock: newLock(client, "l", "b")})
		<-time.After(time.Minute)
		stopped := time.Now()
		a.cancel()
		if err := <-a.ended; err != nil {
			t.Error(err)
		}
		if took := b.until(t, stopped); took < a.slow || took > a.slow+3*usualTerm.Retry {
			t.Errorf("the second worked %v after the first was told to end, which took that %v", took, a.slow)
		}
		b.cancel()
		if err := <-b.ended; err != nil {
			t.Error(err)
		}
	})
}

// TestLeaderIsLost: a holder that cannot renew ends its work before another starts, and
// leads again when nobody else does.
func TestLeaderIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var working atomic.Int64
		slow := usualTerm.Duration - usualTerm.Deadline - time.Second
		a := lead(t, &working, &leader{lock: newLock(client, "l", "a"), slow: slow})
		a.until(t, time.Time{})
		b := lead(t, &working, &leader{lock: newLock(client, "l", "b")})
		<-time.After(time.Minute)
		lost := time.Now()
		a.away.Store(true)
		// It looks with pauses of up to 2.2 times the retry period, and waits for
		// the duration since it last saw a sign.
		if took := b.until(t, lost); took > usualTerm.Duration+5*usualTerm.Retry {
			t.Errorf("the second worked %v after the first was lost", took)
		}
		a.away.Store(false)
		<-time.After(time.Minute)
		stopped := time.Now()
		b.cancel()
		if err := <-b.ended; err != nil {
			t.Error(err)
		}
		a.until(t, stopped)
		a.cancel()
		if err := <-a.ended; err != nil {
			t.Error(err)
		}
	})
}

// TestLeadByTwo: a process works only while it holds all leases.
func TestLeadByTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var working atomic.Int64
		other := lead(t, &working, &leader{lock: newLock(client, "second", "other")})
		other.until(t, time.Time{})
		a := lead(t, &working, &leader{lock: newLock(client, "first", "a")}, newLock(client, "second", "a"))
		<-time.After(time.Minute)
		stopped := time.Now()
		other.cancel()
		a.until(t, stopped)
		lost := time.Now()
		a.away.Store(true)
		<-time.After(usualTerm.Duration)
		synctest.Wait()
		if working.Load() != 0 {
			t.Error("it works without the first lease")
		}
		a.away.Store(false)
		a.until(t, lost)
		a.cancel()
		if err := errors.Join(<-a.ended, <-other.ended); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"first", "second"} {
			l, err := client.CoordinationV1().Leases("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != "" {
				t.Errorf("lease %s is not given back: %v %v", name, l.Spec, err)
			}
		}
	})
}

// TestTakeOver: after the death of a process that held all leases, two others wait for
// the expiry of all leases at the same time, and not of one after the other; then one of
// them leads.
func TestTakeOver(t *testing.T) {
	for _, roles := range []int{1, 3, 7} {
		synctest.Test(t, func(t *testing.T) {
			client := versioned()
			die, dead := context.WithCancel(t.Context())
			locks := func(who string) (first *lock, more []*lock) {
				var all []*lock
				for i := range roles {
					all = append(all, newLock(client, fmt.Sprint("lease-", i), who))
				}
				return all[0], all[1:]
			}
			first, more := locks("gone")
			for i, l := range append([]*lock{first}, more...) {
				go renews(die, t, l, time.Duration(i)*usualTerm.Retry/time.Duration(roles))
			}
			var working atomic.Int64
			<-time.After(usualTerm.Retry)
			first, more = locks("a")
			a := lead(t, &working, &leader{lock: first}, more...)
			first, more = locks("b")
			b := lead(t, &working, &leader{lock: first}, more...)
			<-time.After(10 * time.Minute)
			if working.Load() != 0 {
				t.Error("somebody works beside a living leader")
			}
			lost := time.Now()
			dead()
			<-time.After(usualTerm.Duration - usualTerm.Retry - time.Second)
			synctest.Wait()
			if working.Load() != 0 {
				t.Error("somebody works too soon")
			}
			<-time.After(2*usualTerm.Retry + time.Second)
			synctest.Wait()
			if working.Load() != 1 {
				t.Errorf("with %d leases, %d work %v after the leader was lost", roles, working.Load(), time.Since(lost))
			}
			a.cancel()
			b.cancel()
			if err := errors.Join(<-a.ended, <-b.ended); err != nil {
				t.Error(err)
			}
		})
	}
}

// versioned is an API that refuses writes with an old resource version.
func versioned() *fake.Clientset {
	client := fake.NewClientset()
	var mu sync.Mutex
	version := 0
	client.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		write, ok := a.(clienttesting.UpdateAction) // A creation is one, too.
		if !ok {
			return false, nil, nil
		}
		mu.Lock()
		defer mu.Unlock()
		l := write.GetObject().(*coordinationv1.Lease).DeepCopy()
		at := a.GetResource()
		version++
		if a.GetVerb() == "create" {
			l.ResourceVersion = strconv.Itoa(version)
			return true, l, client.Tracker().Create(at, l, l.Namespace)
		}
		now, err := client.Tracker().Get(at, l.Namespace, l.Name)
		if err != nil {
			return true, nil, err
		}
		if now.(*coordinationv1.Lease).ResourceVersion != l.ResourceVersion {
			return true, nil, apierrors.NewConflict(at.GroupResource(), l.Name, nil)
		}
		l.ResourceVersion = strconv.Itoa(version)
		return true, l, client.Tracker().Update(at, l, l.Namespace)
	})
	return client
}

// renews renews a lease until ctx ends, from a moment on.
func renews(ctx context.Context, t *testing.T, l *lock, from time.Duration) {
	<-time.After(from)
	for ctx.Err() == nil {
		l.write(t, "gone", usualTerm.Duration)
		select {
		case <-ctx.Done():
		case <-time.After(usualTerm.Retry):
		}
	}
}

// TestNextLeadsAtOnce: a waiting process notices the release of the lease at once.
func TestNextLeadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		begun := make(chan string, 2)
		run := func(name string) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- Lead(ctx, []WatchedLock{newLock(client, "l", name).watched()}, usualTerm, slog.New(slog.DiscardHandler),
					func(ctx context.Context) error {
						begun <- name
						<-ctx.Done()
						return nil
					})
			}()
			return func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		}
		stopA := run("a")
		<-begun
		stopB := run("b")
		<-time.After(time.Minute)
		stopped := time.Now()
		stopA()
		<-begun
		if took := time.Since(stopped); took > 0 {
			t.Errorf("the next one leads after %v", took)
		}
		stopB()
	})
}

// TestWorkEndsByItself: Lead returns the error of run and releases the lease.
func TestWorkEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, broken := fake.NewClientset(), errors.New("broken")
		l := newLock(client, "l", "a")
		err := Lead(t.Context(), []WatchedLock{l.watched()}, usualTerm, slog.New(slog.DiscardHandler),
			func(context.Context) error { return broken })
		if !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
		r, err := l.Leases.Get(t.Context(), l.Name, metav1.GetOptions{})
		if holder, _ := held(r); err != nil || holder != "" {
			t.Errorf("the lease is not given back: %v %v", r, err)
		}
	})
}
