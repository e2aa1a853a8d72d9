package app

import (
	"context"
	"log/slog"
	"path/filepath"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/volume"
)

// RegistrarOptions configure the registration of a driver with the node agent of its
// host.
type RegistrarOptions struct {
	// Socket is the path of the driver's socket. The driver may start later and may
	// restart.
	Socket string
	// Endpoint is the path of the same socket on the host; empty means the usual path
	// below a kubelet's directory.
	Endpoint string
	// Dir is the directory of registration sockets.
	Dir string
	// Log is the log of the program.
	Log *slog.Logger
}

// Registrar waits for a driver and registers it with the node agent until ctx ends or
// the agent refuses the driver (S1-013). While the driver is unavailable it stays
// registered, because its volumes still exist. When it restarts it is registered
// again, because its name or the information about its node may have changed.
func Registrar(ctx context.Context, o RegistrarOptions) error {
	d, err := dialDriver(ctx, o.Socket, o.Log)
	for err == nil && ctx.Err() == nil {
		d, err = o.registerUntilRestart(ctx, d)
	}
	return unlessEnded(ctx, err)
}

// registerUntilRestart registers a driver until it has restarted, and returns the
// restarted driver.
func (o RegistrarOptions) registerUntilRestart(ctx context.Context, d *csi.Driver) (next *csi.Driver, err error) {
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
		o.Log.Warn("the driver is unavailable", "driver", d.Name)
		next, err = dialDriver(own, o.Socket, o.Log)
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
