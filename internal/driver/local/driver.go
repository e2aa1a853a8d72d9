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

// Options says where one instance of the driver works.
type Options struct {
	// NodeID is the driver's name of this node.
	NodeID string
	// PoolDir holds the volumes; several instances on a host may share it.
	PoolDir string
	// Keep is how many bytes of the pool's disk no new volume or snapshot may
	// take: others that are on it need them.
	Keep int64
	// Endpoint is the path of the CSI socket.
	Endpoint string
	// RegistrationSocket is the path of the socket that announces the driver
	// to a node agent; empty for none.
	RegistrationSocket string
	// Log receives what is worth telling.
	Log *slog.Logger
}

// Serve answers CSI calls until ctx ends; calls under way are finished first.
// Volumes stay mounted.
func Serve(ctx context.Context, o Options) error {
	p, err := openPool(o.PoolDir, o.NodeID)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.sweep(); err != nil {
		// One thing that cannot be deleted must not keep all volumes away.
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

// serveAll serves in order, so that the driver answers before it is announced,
// and stops in the reverse order.
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

// registrar answers a node agent that found the registration socket.
type registrar struct {
	registration.UnimplementedRegistrationServer
	endpoint string
	log      *slog.Logger
}
