package lease

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/sidecar"
)

// leaseServer is an API server that has leases only. It refuses writes of versions that are not the last one.
type leaseServer struct {
	mu      sync.Mutex
	version int
	leases  map[string]*coordinationv1.Lease
	// watched holds the watches with the name of their lease; "" is a watch of all.
	watched map[*watch.RaceFreeFakeWatcher]string
	// writes counts the writes that were not refused, and reads the reads of processes.
	writes, reads int
}

func newLeaseServer() *leaseServer {
	return &leaseServer{leases: map[string]*coordinationv1.Lease{}, watched: map[*watch.RaceFreeFakeWatcher]string{}}
}

func leaseResource() schema.GroupResource { return coordinationv1.Resource("leases") }

func (s *leaseServer) get(name string) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.leases[name]; ok {
		return l.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(leaseResource(), name)
}

func (s *leaseServer) put(l *coordinationv1.Lease, creates bool) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, there := s.leases[l.Name]
	switch {
	case creates && there:
		return nil, apierrors.NewAlreadyExists(leaseResource(), l.Name)
	case !creates && !there:
		return nil, apierrors.NewNotFound(leaseResource(), l.Name)
	case !creates && before.ResourceVersion != l.ResourceVersion:
		return nil, apierrors.NewConflict(leaseResource(), l.Name, errors.New("it has changed"))
	}
	s.version++
	s.writes++
	l = l.DeepCopy()
	l.ResourceVersion = strconv.Itoa(s.version)
	s.leases[l.Name] = l
	s.tell(watch.Event{Type: watch.Modified, Object: l})
	return l.DeepCopy(), nil
}

// remove deletes a lease as a person does.
func (s *leaseServer) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[name]
	delete(s.leases, name)
	s.tell(watch.Event{Type: watch.Deleted, Object: l})
}

// tell tells those who watch; s.mu is held. It ends the watch of who does not listen.
func (s *leaseServer) tell(e watch.Event) {
	for w, name := range s.watched {
		switch {
		case name != "" && name != e.Object.(*coordinationv1.Lease).Name || w.IsStopped():
		case len(w.ResultChan()) == int(watch.DefaultChanSize):
			w.Stop()
		default:
			w.Action(e.Type, e.Object.DeepCopyObject())
		}
	}
}

// wire is how one process reaches the server.
type wire struct {
	typedcoordinationv1.LeaseInterface
	server *leaseServer

	mu   sync.Mutex
	rand *rand.Rand
	// clock is how far the process's clock is from others'.
	clock time.Duration
	// faults is the share of requests of which the request or the answer is late or lost.
	faults float64
	// prompt says that answers are not late, from which client-go's elector counts its deadline.
	prompt bool
	// away is until when no request reaches the server, or none about the lease of the name in only; and suspended until
	// when the process stands still.
	away, suspended time.Time
	only            string
	// asleep is how long the process's host has been suspended, as a time.Duration: its clock stood still.
	asleep atomic.Int64
	// dead is closed when the process was killed.
	dead chan struct{}
}

var errAway = errors.New("the server does not answer")

func newWire(server *leaseServer, seed uint64) *wire {
	chance := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // a test
	return &wire{server: server, rand: chance, dead: make(chan struct{})}
}

// delay returns how long something takes: mostly no time, sometimes long.
func (w *wire) delay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rand.Float64() >= w.faults {
		return time.Duration(w.rand.IntN(20)) * time.Millisecond
	}
	return time.Duration(w.rand.IntN(40000)) * time.Millisecond
}

func (w *wire) lost(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	away := time.Now().Before(w.away) && (w.only == "" || w.only == name)
	return away || w.rand.Float64() < w.faults/2
}

// resume returns when the process does not stand still; false if it is dead.
func (w *wire) resume() bool {
	for {
		w.mu.Lock()
		left := time.Until(w.suspended)
		w.mu.Unlock()
		select {
		case <-w.dead:
			return false
		default:
		}
		if left <= 0 {
			return true
		}
		<-time.After(left)
	}
}

// request makes a request, which may have its effect although nobody waits for the answer any more.
func (w *wire) request(
	ctx context.Context, name string, do func() (*coordinationv1.Lease, error),
) (l *coordinationv1.Lease, err error) {
	if !w.resume() {
		return nil, errAway
	}
	type answer struct {
		l   *coordinationv1.Lease
		err error
	}
	answers := make(chan answer, 1)
	forth, back, lost := w.delay(), w.delay(), w.lost(name)
	if w.prompt {
		back = 0
	}
	go func() {
		<-time.After(forth)
		if lost {
			return
		}
		l, err := do()
		<-time.After(back)
		answers <- answer{l, err}
	}()
	select {
	case a := <-answers:
		l, err = a.l, a.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-w.dead:
		err = errAway
	}
	if !w.resume() {
		return nil, errAway
	}
	return l, err
}

// step sets the process's clock, as a user does, or a program that synchronizes it.
func (w *wire) step() {
	w.set(func() { w.clock = time.Duration(w.rand.IntN(7200)-3600) * time.Second })
}

// shifted returns a lease with the times of the process's clock.
func (w *wire) shifted(l *coordinationv1.Lease) *coordinationv1.Lease {
	w.mu.Lock()
	by := w.clock
	w.mu.Unlock()
	l = l.DeepCopy()
	for _, at := range []*metav1.MicroTime{l.Spec.RenewTime, l.Spec.AcquireTime} {
		if at != nil {
			*at = metav1.NewMicroTime(at.Add(by))
		}
	}
	return l
}

func (w *wire) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return w.request(ctx, name, func() (*coordinationv1.Lease, error) {
		w.server.mu.Lock()
		w.server.reads++
		w.server.mu.Unlock()
		return w.server.get(name)
	})
}

func (w *wire) Create(
	ctx context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	l = w.shifted(l)
	return w.request(ctx, l.Name, func() (*coordinationv1.Lease, error) { return w.server.put(l, true) })
}

func (w *wire) Update(
	ctx context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	l = w.shifted(l)
	return w.request(ctx, l.Name, func() (*coordinationv1.Lease, error) { return w.server.put(l, false) })
}

func (w *wire) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	one := watch.NewRaceFreeFake()
	w.server.watched[one] = strings.TrimPrefix(o.FieldSelector, "metadata.name=")
	return one, nil
}

// holder returns who holds a lease.
func (s *leaseServer) holder(name string) string {
	l, err := s.get(name)
	if err != nil {
		return ""
	}
	who, _ := holderOf(l)
	return who
}

// hold writes that a process holds a lease, as client-go's elector does.
func (s *leaseServer) hold(t *testing.T, name, holder string, duration time.Duration) {
	t.Helper()
	l, err := s.get(name)
	if err != nil {
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	l.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: ptr.To(int32(duration / time.Second)),
		RenewTime: ptr.To(metav1.NowMicro()),
	}
	if _, err := s.put(l, err != nil); err != nil {
		t.Error(err)
	}
}

func (w *wire) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// usualTerm are the default times of the CSI sidecars, and longTerm those of a process of this package.
var (
	usualTerm = sidecar.Term{Duration: 15 * time.Second, Deadline: 10 * time.Second, Retry: 5 * time.Second}
	longTerm  = SharedTerm()
)

// party is a process at a server.
type party struct {
	name string
	wire *wire
	// ours says that it is of this package; otherwise it has client-go's elector.
	ours  bool
	end   context.CancelFunc
	ended chan struct{}
}

func newParty(s *leaseServer, name string, seed uint64) (*party, context.Context) {
	ctx, end := context.WithCancel(context.Background())
	return &party{name: name, wire: newWire(s, seed), end: end, ended: make(chan struct{})}, ctx
}

// candidate returns the process as a candidate of this package.
func (p *party) candidate(t rapid.TB, term sidecar.Term, log *slog.Logger, leases ...string) *Candidate {
	t.Helper()
	p.ours = true
	client := newClient(p.wire, "default", p.name, map[string]string{"team": "storage"})
	client.asleep = func() time.Duration { return time.Duration(p.wire.asleep.Load()) }
	c, err := client.Candidate(leases, term, log)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run starts the candidate.
func (p *party) run(ctx context.Context, t rapid.TB, c *Candidate, work func(context.Context) error) {
	go func() {
		defer close(p.ended)
		if err := c.Run(ctx, work); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}()
}

func (p *party) kill() {
	close(p.wire.dead)
	p.stop()
}

func (p *party) stop() {
	p.end()
	<-p.ended
}
