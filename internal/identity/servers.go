package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/decide/planes"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/volume"
)

const (
	// serversName is the file with the addresses of control planes.
	serversName = "control-planes.json"
	// stagger is how long an attempt to connect is alone before the next address is tried beside it.
	stagger = 300 * time.Millisecond
	// dialLimit bounds an attempt.
	dialLimit = 10 * time.Second
)

// servers connects to one of several control planes, to that which has answered last if it can. It is safe for
// concurrent use.
type servers struct {
	path string
	log  *slog.Logger
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu sync.Mutex
	// known are host:port of each, first the one that has answered last.
	known []string
}

// serversBelow returns the servers whose addresses are stored below the root of an agent.
func serversBelow(root string, log *slog.Logger) *servers {
	s := &servers{path: filepath.Join(root, "identity", serversName), log: log, dial: (&net.Dialer{
		Timeout: dialLimit,
		// A host that is switched off closes no connection.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control:         limitUnacknowledged,
	}).DialContext}
	// Without the file, the address in the invitation is the only one.
	_ = durable.ReadJSON(s.path, maxSize, &s.known)
	return s
}

// use has clients with a configuration connect to any of the servers, by its own Dial if it has one.
func (s *servers) use(config *rest.Config) {
	if config.Dial != nil {
		s.dial = config.Dial
	}
	config.Dial = s.Dial
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return &attempts{inner, s} })
}

// attempts are the requests of a client.
type attempts struct {
	http.RoundTripper
	servers *servers
}

// RoundTrip has the next connection lead to another server after an error, because what answers at an address may be no
// control plane.
func (a *attempts) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := a.RoundTripper.RoundTrip(r)
	if err != nil && r.Context().Err() == nil {
		a.servers.demote()
	}
	return answer, err
}

// WrappedRoundTripper returns the RoundTripper that does the requests, as client-go wants it.
func (a *attempts) WrappedRoundTripper() http.RoundTripper { return a.RoundTripper }

// answer is what came of an attempt to connect.
type answer struct {
	conn net.Conn
	from string
	err  error
}

// Dial connects to the control plane at an address, or to another one. It is that of rest.Config.
func (s *servers) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all, answers := s.all(address), make(chan answer)
	go s.attempt(ctx, network, all[0], answers)
	next := time.NewTicker(stagger)
	defer next.Stop()
	var failed []error
	for begun := 1; ; {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-next.C:
		case a := <-answers:
			if a.err == nil {
				s.prefer(a.from)
				return a.conn, nil
			}
			if failed = append(failed, a.err); len(failed) == len(all) {
				return nil, errors.Join(failed...)
			}
		}
		if begun < len(all) {
			go s.attempt(ctx, network, all[begun], answers)
			begun++
		}
	}
}

// all returns the addresses in the order in which they are tried, with that of the invitation.
func (s *servers) all(address string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.known)
	if !slices.Contains(all, address) {
		all = append(all, address)
	}
	return all
}

// attempt connects to one address. A connection that comes when another one was chosen is closed.
func (s *servers) attempt(ctx context.Context, network, to string, answers chan<- answer) {
	conn, err := s.dial(ctx, network, to)
	select {
	case answers <- answer{conn, to, err}:
	case <-ctx.Done():
		if err == nil {
			_ = conn.Close()
		}
	}
}

// prefer has an address be tried first from now on.
func (s *servers) prefer(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.known, address); i > 0 {
		s.known = slices.Insert(slices.Delete(s.known, i, i+1), 0, address)
	}
}

// demote has the address that was tried first be the last one.
func (s *servers) demote() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) > 1 {
		s.known = append(s.known[1:len(s.known):len(s.known)], s.known[0])
	}
}

// set replaces the addresses, and stores them.
func (s *servers) set(now []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := slices.DeleteFunc(slices.Clone(s.known), func(a string) bool { return !slices.Contains(now, a) })
	added := slices.DeleteFunc(slices.Clone(now), func(a string) bool { return slices.Contains(kept, a) })
	if len(added) == 0 && len(kept) == len(s.known) {
		return nil
	}
	s.known = append(kept, added...)
	return durable.WriteJSON(s.path, s.known)
}

// follow stores the addresses that control planes publish, until ctx ends.
func (s *servers) follow(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of the addresses of control planes: %w", err)
	}
	take := func(o any) {
		published, ok := o.(*corev1.ConfigMap)
		if !ok || len(published.Data) == 0 {
			return // nothing is known, which is not that there are no control planes
		}
		if err := s.set(planes.AddressesIn(published.Data)); err != nil {
			s.log.Warn("the addresses of the control planes are not stored", "err", err)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", metav1.NamespacePublic,
			fields.OneTermEqualSelector(metav1.ObjectNameField, volume.ConfigPlanes)),
		ObjectType: &corev1.ConfigMap{},
		Handler:    cache.ResourceEventHandlerFuncs{AddFunc: take, UpdateFunc: func(_, now any) { take(now) }},
	})
	informer.RunWithContext(ctx)
	return nil
}
