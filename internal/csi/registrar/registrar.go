package registrar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"volplane.dev/volplane/internal/csi"
)

const (
	// rescanInterval is the time between checks of the socket if the kernel reports no event.
	rescanInterval = 30 * time.Second
	// minTakenPause is the first pause of a patient registrar while another registrar has its path.
	minTakenPause = time.Second
	// stopTimeout is how long an agent may take to receive the last answer.
	stopTimeout = time.Second
	// maxRequest is the size limit of an agent's request, in bytes.
	maxRequest = 64 << 10
	// connectionBuffer is the size of the buffers of a connection, in bytes. gRPC's own are eight times as large.
	connectionBuffer = 4 << 10
)

var (
	// ErrRefused says that the agent refuses the driver; the message has the agent's reason. It is final.
	ErrRefused = errors.New("the node agent refuses the driver")
	// ErrTaken says that another registrar serves the same path.
	ErrTaken = errors.New("another registrar announces here")
)

// Registrar registers one driver.
type Registrar struct {
	// Driver is the driver's name.
	Driver string
	// Endpoint is the path of the driver's CSI socket as the agent sees it.
	Endpoint string
	// Path is the path of the registration socket, in the directory that the agent watches.
	Path string
	// Patient says that neither a refusal nor ErrTaken ends Run: they are logged, and the agent may ask again later.
	Patient bool
	// NodeOnly means that the driver has only its node service behind the socket. Volplane's node agent then does not call
	// it as a controller; a kubelet never does.
	NodeOnly bool
	// Changes returns notices of changes in the directory of Path, until stop is called. If it is nil, the registrar
	// watches the directory itself, which takes an inotify instance.
	Changes func() (changed <-chan struct{}, stop func())
	// Log receives the result of the registration.
	Log *slog.Logger
}

// Path returns the usual path of a driver's registration socket in a directory.
func Path(dir, driver string) string { return filepath.Join(dir, driver+"-reg.sock") }

// Run registers the driver and serves the registration socket until ctx ends, when it returns nil. It fails with
// csi.ErrName, ErrRefused, ErrTaken, or the error of creating the socket. It may be repeated.
func (r Registrar) Run(ctx context.Context) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("register driver: %w", err)
	}
	pause := minTakenPause
	for {
		removed, err := r.announce(ctx)
		if r.Patient && errors.Is(err, ErrTaken) {
			r.Log.Warn("driver is not announced, will be retried", "driver", r.Driver, "socket", r.Path, "pause", pause,
				"err", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(pause):
			}
			pause = min(2*pause, rescanInterval)
			continue
		}
		if err != nil {
			return fmt.Errorf("register driver %s at %s: %w", r.Driver, r.Path, err)
		}
		if !removed {
			return nil
		}
		pause = minTakenPause
		r.Log.Warn("the registration socket was removed and is created again", "driver", r.Driver, "socket", r.Path)
	}
}

// Serve serves a driver at its socket and, if there is a Path, registers it, until ctx ends or the
// agent refuses the driver. The caller stops the server.
func (r Registrar) Serve(ctx context.Context, server *grpc.Server, at net.Listener) error {
	announce, stop := context.WithCancel(ctx)
	defer stop()
	failed, ended := make(chan error, 1), make(chan error, 1)
	go func() { failed <- server.Serve(at) }()
	go func() {
		if r.Path == "" {
			<-announce.Done()
			ended <- nil
			return
		}
		ended <- r.Run(announce)
	}()
	select {
	case err := <-ended:
		return err
	case err := <-failed:
		stop()
		return errors.Join(err, <-ended)
	}
}

func (r Registrar) check() error {
	if err := csi.CheckName(r.Driver); err != nil {
		return err
	}
	for _, path := range []string{r.Endpoint, r.Path} {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return fmt.Errorf("%q is not an absolute path", path)
		}
	}
	return nil
}

// announce serves the socket until ctx ends, the agent refuses the driver, or the socket is
// removed; then removed is true.
func (r Registrar) announce(ctx context.Context) (removed bool, err error) {
	socket, err := listen(ctx, r.Path)
	if errors.Is(err, fs.ErrNotExist) {
		// The socket or its directory was removed while it was being created.
		return ctx.Err() == nil, nil
	}
	if err != nil {
		return false, err
	}
	defer socket.remove()
	changed, stop := r.changes()
	defer stop()
	refused, failed := make(chan error, 1), make(chan error, 1)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.ReadBufferSize(connectionBuffer),
		grpc.WriteBufferSize(connectionBuffer))
	registerapi.RegisterRegistrationServer(server, &service{Registrar: r, refused: refused})
	go func() { failed <- server.Serve(socket) }()
	// The agent still gets the answer to its last request.
	defer func() {
		defer time.AfterFunc(stopTimeout, server.Stop).Stop()
		server.GracefulStop()
	}()
	tick := time.NewTicker(rescanInterval)
	defer tick.Stop()
	for {
		if is, err := socket.exists(); !is || err != nil {
			return err == nil, err
		}
		select {
		case <-ctx.Done():
			return false, nil
		case err := <-refused:
			return false, err
		case err := <-failed:
			return false, err
		case <-changed:
		case <-tick.C:
		}
	}
}

// changes returns notices of changes in the socket's directory. Without them, the periodic check has to suffice.
func (r Registrar) changes() (changed <-chan struct{}, stop func()) {
	if r.Changes != nil {
		return r.Changes()
	}
	n, err := fsnotify.NewWatcher()
	if err == nil {
		if err = n.Add(filepath.Dir(r.Path)); err == nil {
			return forward(n.Events), func() { _ = n.Close() }
		}
		_ = n.Close()
	}
	r.Log.Warn("the directory of the registration socket cannot be watched: a removed socket is noticed late",
		"socket", r.Path, "err", err)
	return nil, func() {}
}

// forward returns a channel that receives after each event, until the events end.
func forward(events <-chan fsnotify.Event) <-chan struct{} {
	changed := make(chan struct{}, 1)
	go func() {
		for range events {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed
}

// service answers the agent's requests.
type service struct {
	registerapi.UnimplementedRegistrationServer
	Registrar
	refused chan<- error
}

// GetInfo returns the driver's name, endpoint and versions.
func (s *service) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	if s.NodeOnly {
		// The API has no field for it. Agents that do not know the header do not see it.
		if err := grpc.SetHeader(ctx, metadata.Pairs(csi.HeaderNodeOnly, "true")); err != nil {
			return nil, err
		}
	}
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: s.Driver, Endpoint: s.Endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus receives the result of the registration.
func (s *service) NotifyRegistrationStatus(
	_ context.Context, answer *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	if answer.GetPluginRegistered() {
		s.Log.Info("driver is registered", "driver", s.Driver, "endpoint", s.Endpoint)
		return &registerapi.RegistrationStatusResponse{}, nil
	}
	err := fmt.Errorf("%w: %.1000q", ErrRefused, answer.GetError())
	if s.Patient {
		s.Log.Warn("driver is not registered", "driver", s.Driver, "err", err)
		return &registerapi.RegistrationStatusResponse{}, nil
	}
	select {
	case s.refused <- err:
	default:
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// ErrNoSocket says that a driver has no registration socket.
var ErrNoSocket = errors.New("registration socket does not exist")

// Check asks the registration socket of a driver in a directory for the name of its driver, as a node agent does. It
// fails with ErrNoSocket, or with another error if the answer is invalid. It may be repeated.
func Check(ctx context.Context, dir, driver string) error {
	path := Path(dir, driver)
	switch file, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return ErrNoSocket
	case err != nil:
		return err
	case file.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is not a socket", path)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("error connecting to node-registrar socket %s: %w", path, err)
	}
	defer conn.Close()
	client, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithReadBufferSize(connectionBuffer), grpc.WithWriteBufferSize(connectionBuffer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxRequest)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }))
	if err != nil {
		return fmt.Errorf("error connecting to node-registrar socket %s: %w", path, err)
	}
	defer client.Close()
	info, err := registerapi.NewRegistrationClient(client).GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return fmt.Errorf("error getting info from node-registrar socket: %w", err)
	}
	if info.GetName() != driver {
		return fmt.Errorf("invalid driver name %.80q", info.GetName())
	}
	return nil
}
