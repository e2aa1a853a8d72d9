package identity

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	decide "volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/decide/planes"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/volume"
)

const (
	// serversName is the file with the addresses of control planes.
	serversName = "control-planes.json"
	// stagger is the head start of an attempt to connect before the next address is tried at the same time.
	stagger = 300 * time.Millisecond
	// dialLimit bounds an attempt.
	dialLimit = 10 * time.Second
)

// servers connects to one of several control planes, to that which has answered last if it can. It is safe for
// concurrent use.
type servers struct {
	path string
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// moved is called when another control plane responds than before.
	moved func(before, now string)
	// home is the address in the configuration of the clients, host:port.
	home string
	// authority has issued the certificates of the control planes, in PEM.
	authority []byte

	mu sync.Mutex
	// known are the servers as host:port; the first is the one that responded last.
	known []string
}

// stored is the content of the file: the addresses of the control planes whose certificates an authority has issued.
type stored struct {
	Authority []byte   `json:"certificateAuthority"`
	Addresses []string `json:"addresses"`
}

// serversBelow returns the servers whose addresses are stored below the root of an agent.
func serversBelow(root string) *servers {
	return &servers{path: filepath.Join(root, "identity", serversName), moved: func(_, _ string) {}, dial: (&net.Dialer{
		Timeout: dialLimit,
		// A host that is switched off closes no connection.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control:         limitUnacknowledged,
	}).DialContext}
}

// Reach makes clients with a configuration connect to any control plane of its cluster whose address is stored below
// the root of this host's agent, first to the one in the configuration. It calls moved when another one responds than
// before. Configurations of other servers stay as they are.
func Reach(config *rest.Config, root string, moved func(before, now string)) {
	s := serversBelow(root)
	s.moved = moved
	if s.use(config) {
		s.known = []string{s.home}
	}
}

// Remember stores, below the root of this host's agent, the addresses of the control planes whose certificates an
// authority has issued. It may be repeated.
func Remember(root string, authority []byte, addresses []string) error {
	s := serversBelow(root)
	s.authority = authority
	s.read()
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return fmt.Errorf("store the addresses of the control planes: %w", err)
	}
	return s.set(addresses)
}

// use makes clients with a configuration connect to any of the servers, through its own Dial if it has one. It does
// nothing and returns false if its server is not a control plane of volplane that others may replace.
func (s *servers) use(config *rest.Config) bool {
	u, err := url.Parse(config.Host)
	if config.ServerName != decide.ServerName || err != nil || u.Port() == "" {
		return false
	}
	s.home, s.authority = u.Host, config.CAData
	if config.Dial != nil {
		s.dial = config.Dial
	}
	config.Dial = s.Dial
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return &attempts{inner, s} })
	return true
}

// read adopts the addresses in the file, which another process may have written. If it is about another cluster, or
// does not exist, the known ones stay.
func (s *servers) read() {
	var from stored
	if durable.ReadJSON(s.path, maxSize, &from) != nil || !bytes.Equal(from.Authority, s.authority) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.known, s.home) && !slices.Contains(from.Addresses, s.home) {
		from.Addresses = append(from.Addresses, s.home)
	}
	s.known = merge(s.known, from.Addresses)
}

// merge returns the current addresses, with those that were known in their previous order.
func merge(known, now []string) []string {
	kept := slices.DeleteFunc(slices.Clone(known), func(a string) bool { return !slices.Contains(now, a) })
	added := slices.DeleteFunc(slices.Clone(now), func(a string) bool { return slices.Contains(kept, a) })
	return append(kept, added...)
}

// attempts are the requests of a client.
type attempts struct {
	http.RoundTripper
	servers *servers
}

// RoundTrip makes the next connection go to another server after an error, because the address may belong to something
// that is not a control plane, or to one that hangs. A request that changes nothing is sent there again.
func (a *attempts) RoundTrip(r *http.Request) (*http.Response, error) {
	for tried := 1; ; tried++ {
		answer, err := a.RoundTripper.RoundTrip(r)
		if err == nil || r.Context().Err() != nil {
			return answer, err
		}
		a.servers.demote()
		if r.Method != http.MethodGet || tried >= len(a.servers.all()) {
			return answer, err
		}
	}
}

// WrappedRoundTripper returns the RoundTripper that performs the requests, as client-go expects.
func (a *attempts) WrappedRoundTripper() http.RoundTripper { return a.RoundTripper }

// answer is what came of an attempt to connect.
type answer struct {
	conn net.Conn
	from string
	err  error
}

// Dial connects to the control plane at an address, or to another one. It is that of rest.Config.
func (s *servers) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if address != s.home {
		return s.dial(ctx, network, address) // it is that of a proxy
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.read()
	all, answers := s.all(), make(chan answer)
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

// all returns the addresses in the order in which they are tried, with that of the configuration.
func (s *servers) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.known)
	if !slices.Contains(all, s.home) {
		all = append(all, s.home)
	}
	return all
}

// attempt connects to one address. A connection that is established after another one was chosen is closed.
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

// prefer makes an address the first to be tried from now on.
func (s *servers) prefer(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.known, address); i > 0 {
		s.moved(s.known[0], address)
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
	next := merge(s.known, now)
	if slices.Equal(next, s.known) {
		return nil
	}
	s.known = next
	return durable.WriteJSON(s.path, stored{s.authority, s.known})
}

// follow stores the addresses that control planes publish, until ctx ends.
func (s *servers) follow(ctx context.Context, config *rest.Config, log *slog.Logger) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of the addresses of control planes: %w", err)
	}
	take := func(o any) {
		published, ok := o.(*corev1.ConfigMap)
		if !ok || len(published.Data) == 0 {
			return // unknown, which does not mean that there are no control planes
		}
		if err := s.set(planes.AddressesIn(published.Data)); err != nil {
			log.Warn("the addresses of the control planes are not stored", "err", err)
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

// unacknowledged is how long sent data may stay unacknowledged before the connection is given up.
const unacknowledged = 10 * time.Second

// limitUnacknowledged is net.Dialer's Control. The kernel's own limit is a quarter of an hour.
func limitUnacknowledged(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged/time.Millisecond))
	})
	return cmp.Or(err, failed)
}
