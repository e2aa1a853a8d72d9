package bridge

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"volplane.dev/volplane/internal/csi/registrar"
	decide "volplane.dev/volplane/internal/decide/flex"
	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/redact"
	"volplane.dev/volplane/internal/socket"
)

// driver is one FlexVolume driver as a CSI driver.
type driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	ability

	b    *Bridge
	name decide.Name
	csi  string
	// given are the secrets of all requests.
	given redact.Secrets
}

// server is the life of one driver's socket.
type server struct {
	driver *driver
	stop   context.CancelFunc
	// ended is closed when nothing is served any more.
	ended chan struct{}
}

// lives says whether the driver is served.
func (s *server) lives() bool {
	if s == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// end returns when nothing is served any more. A nil server has ended.
func (s *server) end() {
	if s != nil {
		s.stop()
		<-s.ended
	}
}

// serve begins to serve a driver; nil says that it cannot be, which is told.
func (b *Bridge) serve(ctx context.Context, n decide.Name, a ability) *server {
	name, err := n.CSI()
	if err != nil {
		b.Log.Error("driver cannot be served", "driver", n.String(), "err", err)
		return nil
	}
	d := &driver{ability: a, b: b, name: n, csi: name}
	endpoint := filepath.Join(b.SocketDir, name, "csi.sock")
	at, err := socket.Listen(ctx, endpoint)
	if err != nil {
		b.Log.Error("driver cannot be served", "driver", name, "err", err)
		return nil
	}
	if b.Changed != nil {
		b.Changed(Served{Name: name, Attach: a.Attach})
	}
	ctx, stop := context.WithCancel(ctx)
	s := &server{driver: d, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		defer stop()
		if err := d.run(ctx, at, endpoint); err != nil {
			b.Log.Error("driver is no longer served", "driver", name, "err", err)
		}
	}()
	b.Log.Info("driver is served", "driver", name, "socket", endpoint, "attach", a.Attach)
	return s
}

// run answers at the socket and announces the driver, until ctx ends or the
// announcement is refused.
func (d *driver) run(ctx context.Context, at net.Listener, endpoint string) error {
	server := grpc.NewServer(grpc.UnaryInterceptor(d.answer))
	csipb.RegisterIdentityServer(server, d)
	csipb.RegisterNodeServer(server, d)
	if d.Attach || d.provision {
		csipb.RegisterControllerServer(server, d)
	}
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(at) }()
	defer func() {
		defer time.AfterFunc(farewell, server.Stop).Stop()
		server.GracefulStop()
	}()
	if d.b.RegistryDir == "" {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		}
	}
	announce, end := context.WithCancel(ctx)
	over := make(chan error, 1)
	r := registrar.Registrar{Driver: d.csi, Endpoint: endpoint, Path: registrar.Path(d.b.RegistryDir, d.csi), Log: d.b.Log}
	go func() { over <- r.Run(announce) }()
	defer end()
	select {
	case err := <-over:
		return err
	case err := <-failed:
		end()
		return errors.Join(err, <-over)
	}
}

// answer gives errors their codes and takes secrets out of them, also those of
// earlier requests.
func (d *driver) answer(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (any, error) {
	if s, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		d.given.AddData(s.GetSecrets())
	}
	response, err := next(ctx, request)
	return response, failure(err, &d.given)
}

// ready returns the driver to bring something with.
func (d *driver) ready() (*flex.Driver, error) { return d.b.Host.Get(d.name) }

// kept returns the driver to take something away with; the last good version
// does that for one that is broken or gone (H16).
func (d *driver) kept() (*flex.Driver, error) { return d.b.Host.Kept(d.name) }
