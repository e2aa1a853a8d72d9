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
	// rescan is the pause between looks at the socket that no notice asked for.
	rescan = 30 * time.Second
	// farewell bounds how long an agent may take to hear the last answer.
	farewell = time.Second
	// maxRequest bounds what an agent says, in bytes.
	maxRequest = 64 << 10
)

var (
	// ErrRefused is final for this registration: the agent has said why.
	ErrRefused = errors.New("the node agent refuses the driver")
	// ErrTaken means that another one announces, or has begun to announce, at
	// the same path.
	ErrTaken = errors.New("another registrar announces here")
)

// Registrar announces one driver.
type Registrar struct {
	// Driver is its name, Endpoint the path of its socket as the agent reaches
	// it.
	Driver, Endpoint string
	// Versions are those of CSI that it speaks; none stands for 1.0.0.
	Versions []string
	// Path is the registration socket, in the directory that the agent looks at.
	Path string
	// Log receives what the agent says.
	Log *slog.Logger
}

// Path returns the usual path of a driver's registration socket in a directory.
func Path(dir, driver string) string { return filepath.Join(dir, driver+"-reg.sock") }

// Run announces the driver until ctx ends, which is no error. It fails with
// csi.ErrName, ErrRefused, ErrTaken, or when there can be no socket; it may be
// repeated.
func (r Registrar) Run(ctx context.Context) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("register driver: %w", err)
	}
	for {
		again, err := r.announce(ctx)
		if err != nil {
			return fmt.Errorf("register driver %s at %s: %w", r.Driver, r.Path, err)
		}
		if !again {
			return nil
		}
		r.Log.Warn("the registration socket was removed, it is made again", "driver", r.Driver, "socket", r.Path)
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

// announce serves at the socket until ctx ends, the agent refuses, or the
// socket is gone, when it is to be made again.
func (r Registrar) announce(ctx context.Context) (again bool, err error) {
	socket, err := announcement(ctx, r.Path)
	if err != nil {
		return false, err
	}
	defer socket.remove()
	notices, stop := r.follow()
	defer stop()
	refused, failed := make(chan error, 1), make(chan error, 1)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest))
	registerapi.RegisterRegistrationServer(server, &service{Registrar: r, refused: refused})
	go func() { failed <- server.Serve(socket) }()
	// What the agent said is answered before the end.
	defer func() {
		defer time.AfterFunc(farewell, server.Stop).Stop()
		server.GracefulStop()
	}()
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	for {
		if is, err := socket.there(); !is || err != nil {
			return err == nil, err
		}
		select {
		case <-ctx.Done():
			return false, nil
		case err := <-refused:
			return false, err
		case err := <-failed:
			return false, err
		case <-notices:
		case <-tick.C:
		}
	}
}

// follow asks the kernel for notices of the socket's directory. Without them
// the rescan must do.
func (r Registrar) follow() (notices <-chan fsnotify.Event, stop func()) {
	n, err := fsnotify.NewWatcher()
	if err == nil {
		if err = n.Add(filepath.Dir(r.Path)); err == nil {
			return n.Events, func() { _ = n.Close() }
		}
		_ = n.Close()
	}
	r.Log.Warn("no notices of the registration socket, its loss is found late", "socket", r.Path, "err", err)
	return nil, func() {}
}

// service answers the agent.
type service struct {
	registerapi.UnimplementedRegistrationServer
	Registrar
	refused chan<- error
}

// GetInfo says who registers.
func (s *service) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	versions := s.Versions
	if len(versions) == 0 {
		versions = []string{"1.0.0"}
	}
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: s.Driver, Endpoint: s.Endpoint, SupportedVersions: versions,
	}, nil
}

// NotifyRegistrationStatus hears how the registration ended.
func (s *service) NotifyRegistrationStatus(
	_ context.Context, told *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	if told.GetPluginRegistered() {
		s.Log.Info("driver is registered", "driver", s.Driver, "endpoint", s.Endpoint)
		return &registerapi.RegistrationStatusResponse{}, nil
	}
	select {
	case s.refused <- fmt.Errorf("%w: %.1000q", ErrRefused, told.GetError()):
	default:
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
