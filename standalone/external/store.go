package external

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"volplane.dev/volplane/internal/decide/diskspace"
)

const (
	// keepaliveTime and keepaliveLimit are how soon a connection is given up whose other end is silent; gRPC allows no
	// shorter pause.
	keepaliveTime  = 10 * time.Second
	keepaliveLimit = 3 * time.Second
	// dialPause is the longest pause between two attempts to connect. That of gRPC is two minutes, which a store that is
	// back would be waited for.
	dialPause = 2 * time.Second
	// dialLimit bounds an attempt.
	dialLimit = 5 * time.Second
)

// Store is a connection to an etcd that others run.
type Store struct {
	options Options
	client  *clientv3.Client
	members []*member
	log     *slog.Logger
	quorum  quorum
	fence   fence
	// used are the addresses to which requests go; the goroutine that follows the members has them.
	used []string
	// cancel stops following the members, and ended is closed afterwards.
	cancel context.CancelFunc
	ended  chan struct{}
	// failed receives the error after which the store may not be used.
	failed chan error

	mu     sync.Mutex
	latest state
	// record is the path of the file with the position, "" means none.
	record string
}

// Open connects, and returns when the store has a quorum. It waits for that until ctx ends, and reports through step
// what it waits for. The log may be nil.
func Open(ctx context.Context, o Options, step func(what string), log *slog.Logger) (*Store, error) {
	s, err := connect(o, log)
	if err != nil {
		return nil, err
	}
	if err := s.wait(ctx, step); err != nil {
		s.close()
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	go s.follow(run)
	return s, nil
}

// connect makes the clients, which connect when they are used.
func connect(o Options, log *slog.Logger) (*Store, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c, err := o.tls(time.Now())
	if err != nil {
		return nil, err
	}
	s := &Store{
		options: o, used: o.Servers, log: cmp.Or(log, slog.New(slog.DiscardHandler)),
		ended: make(chan struct{}), failed: make(chan error, 1),
	}
	s.quorum.set(nil)
	s.fence.key = []byte(o.Prefix + startedKey)
	s.fence.lead()
	dial := backoff.DefaultConfig
	dial.MaxDelay = dialPause
	s.client, err = clientv3.New(clientv3.Config{
		Endpoints: o.Servers, TLS: c, DialKeepAliveTime: keepaliveTime, DialKeepAliveTimeout: keepaliveLimit,
		Logger: zap.NewNop(), DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: dial, MinConnectTimeout: dialLimit}),
			grpc.WithChainUnaryInterceptor(s.quorum.unary, s.fence.unary), grpc.WithChainStreamInterceptor(s.quorum.stream),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the store: %w", err)
	}
	for _, server := range o.Servers {
		conn, err := s.client.Dial(server)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("connect to the store at %s: %w", server, err)
		}
		s.members = append(s.members, &member{server, conn, []byte(o.Prefix + identityKey)})
	}
	return s, nil
}

// wait waits for a quorum.
func (s *Store) wait(ctx context.Context, step func(what string)) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		now := s.look(ctx)
		switch {
		case now.others > 0:
			return fmt.Errorf("the addresses of --etcd-servers belong to %d different stores: name the members of one",
				now.others+1)
		case now.Apart == 0:
			s.use(now.usable())
			return nil
		case now.Answer == 0:
			if err := s.options.refused(ctx); err != nil {
				return err
			}
		}
		step("waiting for the store: " + now.String())
		select {
		case <-ctx.Done():
			return fmt.Errorf("the store has no quorum: %s: %w", now, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// Client returns a client for one user of watches, which share a stream. It uses the connections of the store, and the
// caller closes it.
func (s *Store) Client() *clientv3.Client {
	c := clientv3.NewCtxClient(s.client.Ctx(), clientv3.WithZapLogger(s.client.GetLogger()))
	c.KV, c.Maintenance = s.client.KV, s.client.Maintenance
	c.Lease, c.Watcher = clientv3.NewLease(s.client), clientv3.NewWatcher(s.client)
	return c
}

// Err receives the error after which the store may not be used any more: it was replaced by another one, or by an
// older state of itself.
func (s *Store) Err() <-chan error { return s.failed }

// Options returns where the store is.
func (s *Store) Options() Options { return s.options }

// Room returns the last answers of the members and the resulting plan.
func (s *Store) Room() (diskspace.Members, diskspace.Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest.Members, s.latest.plan
}

// Stop ends the connections.
func (s *Store) Stop() {
	s.cancel()
	<-s.ended
	_ = s.note() // the record of the last minute is true, too
	s.close()
}

func (s *Store) close() {
	_ = s.client.Close()
	for _, m := range s.members {
		_ = m.conn.Close()
	}
}

// refused asks the servers for their version, which shows what a client of etcd hides: a certificate that one side
// rejects, for which waiting is useless. It returns nil if there is another reason.
func (o Options) refused(ctx context.Context) error {
	config, err := o.tls(time.Now())
	if err != nil || config == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	for _, server := range o.Servers {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/version", nil)
		if err != nil {
			return fmt.Errorf("ask %s: %w", server, err)
		}
		answer, err := client.Do(request)
		if err == nil {
			_ = answer.Body.Close()
			continue
		}
		var theirs *tls.CertificateVerificationError
		var ours *net.OpError
		var plain tls.RecordHeaderError
		switch {
		case errors.As(err, &theirs):
			return fmt.Errorf("%s: %w: %s", server, theirs, next(theirs))
		case errors.As(err, &ours) && ours.Op == "remote error":
			return fmt.Errorf("%s does not accept the certificate of this client: %w; use --etcd-certfile and "+
				"--etcd-keyfile with one that its authority has signed", server, ours)
		case errors.As(err, &plain):
			return fmt.Errorf("%s does not speak TLS: %w", server, plain)
		}
	}
	return nil
}

// next returns the remedy for the certificate of a server.
func next(err error) string {
	var expired x509.CertificateInvalidError
	var named x509.HostnameError
	switch {
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return "renew the certificate of the store, or set the clock of this host"
	case errors.As(err, &named):
		return "use an address of --etcd-servers that its certificate has"
	}
	return "--etcd-cafile must be the authority that has signed the certificate of the store"
}
