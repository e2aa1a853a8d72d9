package registrar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"volplane.dev/volplane/internal/csi"
)

const (
	// rescanInterval is the time between checks of the socket if the kernel reports no event.
	rescanInterval = 30 * time.Second
	// stopTimeout is how long an agent may take to receive the last answer.
	stopTimeout = time.Second
	// maxRequest is the size limit of an agent's request, in bytes.
	maxRequest = 64 << 10
)

var (
	// ErrRefused says that the agent refuses the driver; the message has the agent's reason. It is
	// final.
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
	// Versions holds the CSI versions that the driver supports; empty stands for 1.0.0.
	Versions []string
	// Path is the path of the registration socket, in the directory that the agent watches.
	Path string
	// Log receives the result of the registration.
	Log *slog.Logger
}

// Path returns the usual path of a driver's registration socket in a directory.
func Path(dir, driver string) string { return filepath.Join(dir, driver+"-reg.sock") }

// Run registers the driver and serves the registration socket until ctx ends, when it returns nil.
// It fails with csi.ErrName, ErrRefused, ErrTaken, or the error of creating the socket. It may be
// repeated.
func (r Registrar) Run(ctx context.Context) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("register driver: %w", err)
	}
	for {
		removed, err := r.announce(ctx)
		if err != nil {
			return fmt.Errorf("register driver %s at %s: %w", r.Driver, r.Path, err)
		}
		if !removed {
			return nil
		}
		r.Log.Warn("the registration socket was removed and is created anew", "driver", r.Driver, "socket", r.Path)
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
	if err != nil {
		return false, err
	}
	defer socket.remove()
	events, stop := r.watchDir()
	defer stop()
	refused, failed := make(chan error, 1), make(chan error, 1)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest))
	registerapi.RegisterRegistrationServer(server, &service{Registrar: r, refused: refused})
	go func() { failed <- server.Serve(socket) }()
	// The agent gets the answer to its last request.
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
		case <-events:
		case <-tick.C:
		}
	}
}

// watchDir returns kernel events of the socket's directory. If there are none, the periodic check
// must do.
func (r Registrar) watchDir() (events <-chan fsnotify.Event, stop func()) {
	n, err := fsnotify.NewWatcher()
	if err == nil {
		if err = n.Add(filepath.Dir(r.Path)); err == nil {
			return n.Events, func() { _ = n.Close() }
		}
		_ = n.Close()
	}
	r.Log.Warn("the directory of the registration socket cannot be watched: a removed socket is noticed late",
		"socket", r.Path, "err", err)
	return nil, func() {}
}

// service answers the agent's requests.
type service struct {
	registerapi.UnimplementedRegistrationServer
	Registrar
	refused chan<- error
}

// GetInfo returns the driver's name, endpoint and versions.
func (s *service) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	versions := s.Versions
	if len(versions) == 0 {
		versions = []string{"1.0.0"}
	}
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: s.Driver, Endpoint: s.Endpoint, SupportedVersions: versions,
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
	select {
	case s.refused <- fmt.Errorf("%w: %.1000q", ErrRefused, answer.GetError()):
	default:
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
