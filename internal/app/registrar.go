package app

import (
	"context"
	"log/slog"
	"path/filepath"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/volume"
)

// RegistrarOptions says where a driver is announced to the node agent of its
// host.
type RegistrarOptions struct {
	// Socket is the driver's; it may come later, and go and come again.
	Socket string
	// Endpoint is the path of the same socket on the host; empty is the usual
	// one of a kubelet.
	Endpoint string
	// Dir is the directory of registration sockets.
	Dir string
	// Log receives what is worth telling.
	Log *slog.Logger
}

// Registrar waits for a driver and announces it to the node agent until ctx
// ends, or until the agent refuses it (S1-013). While the driver is away it
// stays announced, for its volumes are still there; when it comes again it is
// announced anew, because it may have another name or tell something else of
// its node.
func Registrar(ctx context.Context, o RegistrarOptions) error {
	d, err := await(ctx, o.Socket, o.Log)
	for err == nil && ctx.Err() == nil {
		d, err = o.announce(ctx, d)
	}
	return ended(ctx, err)
}

// announce announces a driver until it has come again, and returns it as it is
// then.
func (o RegistrarOptions) announce(ctx context.Context, d *csi.Driver) (next *csi.Driver, err error) {
	defer d.Close()
	own, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() {
		defer stop()
		failed <- registrar.Registrar{
			Driver: d.Name, Endpoint: o.endpoint(d.Name), Path: registrar.Path(o.Dir, d.Name), Log: o.Log,
		}.Run(own)
	}()
	if err = d.AwaitLoss(own); err == nil {
		o.Log.Warn("the driver went away", "driver", d.Name)
		next, err = await(own, o.Socket, o.Log)
	}
	stop()
	if err := <-failed; err != nil {
		if next != nil {
			_ = next.Close()
		}
		return nil, err
	}
	return next, err
}

func (o RegistrarOptions) endpoint(driver string) string {
	if o.Endpoint != "" {
		return o.Endpoint
	}
	return filepath.Join(volume.KubeletDir, "plugins", driver, "csi.sock")
}
