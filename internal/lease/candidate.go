package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	decide "volplane.dev/volplane/internal/decide/lease"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/sidecar"
)

// Candidate works while it holds all of its leases. A zero Candidate needs none.
type Candidate struct {
	leases []*lease
	// works says that it holds all leases.
	works atomic.Bool
}

// Candidate returns a candidate for the leases with these names, which it acquires in this order. All processes must
// use the same order, so that they cannot deadlock. The first lease is for the others what Term.LongOthers says.
func (c *Client) Candidate(names []string, t sidecar.Term, log *slog.Logger) (*Candidate, error) {
	times, err := decide.First(t.Duration, t.Deadline, t.Retry)
	if err != nil {
		return nil, err
	}
	out := &Candidate{}
	for i, name := range names {
		l := &lease{
			Client: c, name: name, times: times, news: make(chan struct{}, 1), log: log.With("lease", c.namespace+"/"+name),
		}
		if i > 0 && t.LongOthers {
			l.times, l.first = decide.Other(times), out.leases[0]
		}
		l.waits = lifecycle.NewWait(l.log, "waiting for the lease")
		out.leases = append(out.leases, l)
	}
	return out, nil
}

// Run acquires all leases in their order, calls work while it holds them (S3-031), and releases them in the reverse
// order after work has returned, so that this process has stopped working before another one can acquire them. When a
// lease is lost, work's context ends, and Run starts acquiring again. All leases are watched from the start, so those
// of a holder that died expire together, however many it held; and a holder sees immediately when another program
// deletes or takes its lease. Run returns when ctx has ended, or with the error of work if work returns by itself.
func (c *Candidate) Run(ctx context.Context, work func(context.Context) error) error {
	watched, stop := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	for _, l := range c.leases {
		watching.Go(func() { l.follow(watched, &follower{name: l.name, see: l.see}) })
	}
	return c.runFrom(ctx, 0, work)
}

// runFrom is Run for the leases from the one with this index on; the process holds those before it.
func (c *Candidate) runFrom(ctx context.Context, i int, work func(context.Context) error) error {
	if i == len(c.leases) {
		c.works.Store(true)
		defer c.works.Store(false)
		if !c.certain() {
			<-ctx.Done()
			return nil
		}
		return work(ctx)
	}
	// Several that cannot be given back must not outlast the time that a process has to end.
	limit := c.leases[0].times.Deadline / 2 / time.Duration(len(c.leases))
	for {
		done, err := c.leases[i].during(ctx, limit, func(held context.Context) error { return c.runFrom(held, i+1, work) })
		if done || ctx.Err() != nil {
			return err
		}
	}
}

// certain says whether no lease under which the process works can be another's. After a suspension the clock knows that
// before the timers of the leases have ended the work.
func (c *Candidate) certain() bool {
	for _, l := range c.leases {
		if !l.valid() {
			return false
		}
	}
	return true
}

// Held says of each lease whether the process holds it and all others.
func (c *Candidate) Held() map[string]bool {
	out := map[string]bool{}
	for _, l := range c.leases {
		out[l.name] = c.works.Load()
	}
	return out
}

// Reread says of each lease how many renewals had to read it first.
func (c *Candidate) Reread() map[string]int64 {
	out := map[string]int64{}
	for _, l := range c.leases {
		l.mu.Lock()
		out[l.name] = l.rereads
		l.mu.Unlock()
	}
	return out
}

// grace is how long after the end of its lease a holder may still work before Check fails. It is upstream's.
const grace = 20 * time.Second

var errStillWorks = errors.New("this process leads, and has not renewed its lease for its duration and 20s")

// Check fails if the process works although it has not renewed a lease for its duration and upstream's grace.
func (c *Candidate) Check() error {
	for _, l := range c.leases {
		if c.works.Load() && l.left() < -(l.times.Duration-l.times.Deadline+grace) {
			return errStillWorks
		}
	}
	return nil
}

// Client reads and writes the leases of a namespace for one process.
type Client struct {
	// Former is the name of a holder that cannot work while this process does, or "". Its leases are taken without
	// waiting.
	Former string

	namespace string
	// identity is the holder's name for this process.
	identity string
	// labels are set on a lease when it is written.
	labels map[string]string
	// asleep returns how long the host has been suspended.
	asleep func() time.Duration
	watcher
}

// NewClient returns a client of the leases in a namespace, whose configuration must allow Rights. The labels are set on
// each lease. There is no client-side rate limit, because a process may hold the leases of many drivers, and because a
// renewal that waits for other requests may come too late.
func NewClient(config *rest.Config, namespace, identity string, labels map[string]string) (*Client, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the leases: %w", err)
	}
	return newClient(client.CoordinationV1().Leases(namespace), namespace, identity, labels), nil
}

func newClient(
	leases typedcoordinationv1.LeaseInterface, namespace, identity string, labels map[string]string,
) *Client {
	return &Client{
		namespace: namespace, identity: identity, labels: labels, asleep: asleep,
		watcher: watcher{leases: leases, followers: map[*follower]bool{}},
	}
}

// ProcessIdentity returns the holder's name for this process: two processes on one host need different ones.
func ProcessIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name of this host: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// Rights returns the rights that holding leases needs; without names, those on every lease of the namespace. The
// names do not restrict the watch: one of the whole namespace costs the API server less than one for each lease.
func Rights(namespace string, names []string) []kube.Access {
	const group, resource = "coordination.k8s.io", "leases"
	return []kube.Access{
		{Group: group, Resource: resource, Namespace: namespace, Verbs: []string{"create", "watch"}},
		{Group: group, Resource: resource, Namespace: namespace, Names: names, Verbs: []string{"get", "update"}},
	}
}
