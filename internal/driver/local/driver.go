package local

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"volplane.dev/volplane/internal/socket"
	"volplane.dev/volplane/internal/volume"
)

// Options configure one instance of the driver.
type Options struct {
	// NodeID is the driver's id of this node.
	NodeID string
	// PoolDir is the directory of the volumes; several instances on a host may share it.
	PoolDir string
	// Keep is how many bytes of the pool's disk are reserved for other users of the disk: no new
	// volume or snapshot is created when less is free.
	Keep int64
	// Endpoint is the path of the CSI socket.
	Endpoint string
	// RegistrationSocket is the path of the socket by which the driver registers with a node agent;
	// empty if it does not.
	RegistrationSocket string
	// Log is the log of the driver.
	Log *slog.Logger
}

// Serve answers CSI calls until ctx ends, and then finishes the calls in flight. Volumes stay
// mounted. It may be called again.
func Serve(ctx context.Context, o Options) error {
	p, err := openPool(o.PoolDir, o.NodeID)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.sweep(); err != nil {
		// A leftover that cannot be deleted must not make all volumes unavailable.
		o.Log.Warn("garbage stays in the pool", "driver", volume.LocalDriver, "pool", o.PoolDir, "err", err)
	}
	if err := thawAll(ctx, p); err != nil {
		return err
	}
	server := grpc.NewServer()
	csipb.RegisterIdentityServer(server, identity{})
	csipb.RegisterControllerServer(server, &controller{pool: p, keep: o.Keep})
	csipb.RegisterNodeServer(server, &node{pool: p, id: o.NodeID})
	servers := []listener{{server, o.Endpoint}}
	if o.RegistrationSocket != "" {
		announce := grpc.NewServer()
		registration.RegisterRegistrationServer(announce, &registrar{endpoint: o.Endpoint, log: o.Log})
		servers = append(servers, listener{announce, o.RegistrationSocket})
	}
	return serveAll(ctx, servers)
}

type listener struct {
	server *grpc.Server
	socket string
}

// serveAll starts the servers in order, so that the driver answers before it is registered, and
// stops them in the reverse order.
func serveAll(ctx context.Context, all []listener) error {
	failed := make(chan error, len(all))
	var started []listener
	var err error
	for _, l := range all {
		var at net.Listener
		if at, err = socket.Listen(ctx, l.socket); err != nil {
			err = fmt.Errorf("serve driver: %w", err)
			break
		}
		started = append(started, l)
		go func() { failed <- l.server.Serve(at) }()
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}
	for i := len(started) - 1; i >= 0; i-- {
		started[i].server.GracefulStop()
	}
	return err
}

// registrar answers the node agent at the registration socket.
type registrar struct {
	registration.UnimplementedRegistrationServer
	endpoint string
	log      *slog.Logger
}
