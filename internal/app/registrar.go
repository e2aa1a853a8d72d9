package app

import (
	"cmp"
	"context"
	"path/filepath"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/volume"
)

// Registrar waits for a driver and registers it with the node agent until ctx ends or
// the agent refuses the driver (S1-013). While the driver is unavailable it stays
// registered, because its volumes still exist. When it restarts it is registered
// again, because its name or the information about its node may have changed.
func Registrar(ctx context.Context, o program.RegistrarOptions) error {
	d, err := dialDriver(ctx, o.Socket, o.Log)
	for err == nil && ctx.Err() == nil {
		d, err = registerOnce(ctx, o, d)
	}
	return parts.UnlessEnded(ctx, err)
}

// registerOnce registers a driver until it has restarted, and returns the
// restarted driver.
func registerOnce(
	ctx context.Context, o program.RegistrarOptions, d *csi.Driver,
) (next *csi.Driver, err error) {
	defer d.Close()
	own, stop := context.WithCancel(ctx)
	defer stop()
	endpoint := cmp.Or(o.Endpoint, filepath.Join(volume.KubeletDir, "plugins", d.Name, "csi.sock"))
	failed := make(chan error, 1)
	go func() {
		defer stop()
		failed <- registrar.Registrar{
			Driver: d.Name, Endpoint: endpoint, Path: registrar.Path(o.Dir, d.Name), Log: o.Log,
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
