package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/standalone/apiserver/membership"
	"volplane.dev/volplane/standalone/apiserver/seal"
	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/pki"
	"volplane.dev/volplane/standalone/progress"
)

const (
	// stallLimit is how long a start may make no progress.
	stallLimit = 2 * time.Minute
	// endLimit is the time limit for stopping the server: a request that waits for a stopped etcd would delay it.
	endLimit = 20 * time.Second
)

// Server is a running API server.
type Server struct {
	dir     *datadir.Dir
	ca      *pki.Authority
	store   store
	members *membership.Members
	near    nearby
	address string
	handler http.Handler
	// connections is how many may be open.
	connections int
	// noBackups is reported to clients that ask for the newest backup.
	noBackups bool

	// ready is closed when everybody is served.
	ready  chan struct{}
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// Start runs an API server over a data directory and returns when it is ready to serve everybody.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	s := &Server{noBackups: o.NoBackups, ready: make(chan struct{}), done: make(chan struct{})}
	if err = s.open(&o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	found, err := s.examine(ctx, o)
	if err != nil {
		return nil, err
	}
	l, err := o.listen(s.connections)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = l.Close()
		}
	}()
	if err = s.settle(ctx, o, found); err != nil {
		return nil, err
	}
	s.address = local(l.Addr())
	if s.ca, err = pki.Open(s.place("pki")); err != nil {
		return nil, err
	}
	if err = s.openStore(ctx, o); err != nil {
		return nil, err
	}
	sealing, err := s.seal(ctx, o)
	if err != nil {
		return nil, err
	}
	if err = s.serve(ctx, l, o, sealing); err != nil {
		return nil, err
	}
	if err = s.finish(ctx, o); err != nil {
		s.end()
		return nil, err
	}
	close(s.ready)
	return s, nil
}

// open sets the feature gates and the limit of connections, opens the data directory for this process, and completes
// the options according to the place of its objects.
func (s *Server) open(o *Options) (err error) {
	if err = setGates(o.FeatureGates); err != nil {
		return err
	}
	if s.connections, err = connections(); err != nil {
		return err
	}
	if s.dir, err = datadir.Open(o.DataDir); err != nil {
		return err
	}
	if o.External, err = s.where(o.External); err != nil {
		_ = s.dir.Close()
	}
	return err
}

// seal encrypts all Secrets before any client can read them, and returns the path of the configuration.
func (s *Server) seal(ctx context.Context, o Options) (string, error) {
	client := s.store.Client()
	defer client.Close()
	return seal.Secrets(ctx, seal.Options{
		Etcd: client, Prefix: s.store.prefix(), Defragment: s.store.defragment(),
		Dir: s.place("pki"), File: o.EncryptionConfig, Forget: o.ForgetUnreadable,
	})
}

// serve assembles the server and starts to answer requests.
func (s *Server) serve(ctx context.Context, l net.Listener, o Options, sealing string) error {
	o.step("starting the API server")
	s.near = near(s.store)
	a, generic, err := s.assemble(l, sealing, o)
	if err != nil {
		return err
	}
	if err := a.hooks(generic); err != nil {
		return err
	}
	generic.AddPostStartHookOrDie("large-objects", func(h genericapiserver.PostStartHookContext) error {
		client := s.store.Client()
		go func() {
			defer client.Close()
			a.bulk.Follow(h, client)
		}()
		return nil
	})
	generic.Handler.NonGoRestfulMux.HandleFunc(diskspace.Path, s.serveRoom)
	if o.Metrics != nil {
		serveMetrics(generic.Handler.NonGoRestfulMux, o.Metrics)
	}
	for path, served := range o.Paths {
		generic.Handler.NonGoRestfulMux.Handle(path, served)
	}
	s.members = a.members
	a.members.Install(generic.Handler.NonGoRestfulMux)
	s.handler = generic.Handler
	prepared := generic.PrepareRun()
	if err := a.describe(generic); err != nil {
		return err
	}
	// The server outlives the context of its start: it ends by Stop, after everything that depends on it.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	go func() {
		defer close(s.done)
		s.err = prepared.RunWithContext(own)
	}()
	return nil
}

// finish waits until the server is ready, and ensures the roles and the administrator's kubeconfig.
func (s *Server) finish(ctx context.Context, o Options) error {
	o.step("waiting for the API server")
	client, err := kubernetes.NewForConfig(s.AdminConfig())
	if err != nil {
		return fmt.Errorf("client of the administrator: %w", err)
	}
	var last error
	state := func() string { return fmt.Sprint(last) }
	err = progress.Wait(ctx, stallLimit, state, func() (bool, error) {
		select {
		case <-s.done:
			return false, fmt.Errorf("server ended: %w", s.err)
		case err := <-s.store.Err():
			return false, s.ended(err)
		default:
		}
		last = client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("API server not ready: %w", err)
	}
	if err := ensureRBAC(ctx, client, o.RBAC, version(o.Version)); err != nil {
		return err
	}
	if err := ensureCRDs(ctx, s.AdminConfig(), version(o.Version)); err != nil {
		return err
	}
	if err := s.markRestored(ctx, client); err != nil {
		return err
	}
	return s.keepAdministrator(time.Now())
}

const (
	adminUser  = "volplane-admin"
	adminGroup = "system:masters"
)

// local returns the address of a listener as seen from this host: the unspecified address, which means every address,
// cannot be connected to.
func local(a net.Addr) string {
	if t, ok := a.(*net.TCPAddr); ok && t.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(t.Port))
	}
	return a.String()
}

// Room returns the space of the store.
func (s *Server) Room() diskspace.Report { return s.store.report() }

// Shared says whether the objects are in a store that other control planes may use, too.
func (s *Server) Shared() bool { _, is := s.store.(outside); return is }

// DirectoryID returns the id of the data directory in use; see datadir.Dir.ID.
func (s *Server) DirectoryID() (string, error) { return s.dir.ID() }

// Members returns the members of the server: its nodes, and the control planes of the same objects.
func (s *Server) Members() *membership.Members { return s.members }

// Addr returns the host:port at which this host reaches the server.
func (s *Server) Addr() string { return s.address }

// CA returns the authority of the server's certificate, in PEM.
func (s *Server) CA() []byte { return s.ca.CertPEM() }

// AdminKubeconfig returns the path of the administrator's kubeconfig.
func (s *Server) AdminKubeconfig() string { return filepath.Join(s.dir.Path, "admin.kubeconfig") }

// AdminConfig returns the way to the server for its own process with all rights.
func (s *Server) AdminConfig() *rest.Config { return s.ClientConfig(adminUser, adminGroup) }

// ClientConfig returns the configuration with which this process connects to the server as a user. There is no rate
// limit on the client's side.
func (s *Server) ClientConfig(name string, groups ...string) *rest.Config {
	return &rest.Config{
		Host:          "https://" + s.address,
		QPS:           -1,
		ContentConfig: rest.ContentConfig{ContentType: mediaType, AcceptContentTypes: mediaType + ",application/json"},
		Transport:     &direct{server: s, user: &user.DefaultInfo{Name: name, Groups: groups}},
	}
}

// Wait returns when ctx ends, or with an error when the server or its etcd fails.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.done:
		return s.err
	case err := <-s.store.Err():
		return s.ended(err)
	}
}

// Stop ends the server; everything that it has confirmed is on disk when Stop returns.
func (s *Server) Stop() {
	s.end()
	s.release()
}

func (s *Server) end() {
	s.cancel()
	select {
	case <-s.done:
	case <-time.After(endLimit):
	}
}

func (s *Server) release() {
	if s.near.compactor != nil {
		s.near.compactor.Stop()
	}
	if s.store != nil {
		s.store.Stop()
	}
	_ = s.dir.Close()
}

// Answers fails if the server does not respond at its address, as others reach it, or reports that it is not alive. An
// etcd that others run is not a part of it, and a server that refuses requests under load is alive.
func (s *Server) Answers(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + s.address, TLSClientConfig: rest.TLSClientConfig{CAData: s.ca.CertPEM()},
	})
	if err != nil {
		return fmt.Errorf("client of the API server: %w", err)
	}
	live := client.Discovery().RESTClient().Get().AbsPath("/livez")
	if _, own := s.store.(embedded); !own {
		live.Param("exclude", "etcd")
	}
	if err := live.Do(ctx).Error(); err != nil && !apierrors.IsTooManyRequests(err) {
		return fmt.Errorf("the API server does not live at %s: %w", s.address, err)
	}
	return nil
}
