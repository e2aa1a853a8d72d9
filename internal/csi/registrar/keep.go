package registrar

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"volplane.dev/volplane/internal/csi"
)

// Keeping registers the driver behind a socket, and registers it again after each restart.
type Keeping struct {
	// Name is the name that the driver must have; empty means any.
	Name string
	// Socket is the path of the driver's socket. The driver may start later and may restart.
	Socket string
	// Endpoint is the path of the same socket as the agent sees it; empty means the usual path below Plugins.
	Endpoint string
	// Plugins is the directory of drivers' sockets as the agent sees it.
	Plugins string
	// Dir is the directory of registration sockets.
	Dir string
	// Timeout is the time limit of a question for the driver's name; 0 means that of other calls.
	Timeout time.Duration
	// Announced is called with the driver's name before each registration, unless it is nil.
	Announced func(driver string)
	// Patient, NodeOnly and Changes are as in Registrar.
	Patient  bool
	NodeOnly bool
	Changes  func() (changed <-chan struct{}, stop func())
	// Log receives changes of the registration.
	Log *slog.Logger
}

// Run registers the driver until ctx ends (S1-013). While the driver is unavailable it stays registered, because its
// volumes still exist. When it restarts it is registered again, because its name or the information about its node may
// have changed. Run fails as Registrar.Run does, and with csi.ErrOtherDriver if the driver has another name than Name.
// It may be repeated.
func (k Keeping) Run(ctx context.Context) error {
	d, err := k.await(ctx)
	for err == nil && ctx.Err() == nil {
		d, err = k.once(ctx, d)
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // a requested end is not a failure
	}
	return err
}

func (k Keeping) await(ctx context.Context) (*csi.Driver, error) {
	d, err := csi.Await(ctx, k.Socket, csi.LogNotReady(k.Log, k.Socket), csi.WithNameOnly(),
		csi.WithNameTimeout(k.Timeout))
	if err == nil && k.Name != "" && csi.CheckIs(d, k.Name) != nil {
		return nil, errors.Join(d.Close(), csi.CheckIs(d, k.Name))
	}
	return d, err
}

// once registers a driver until it has restarted, and returns the restarted driver.
func (k Keeping) once(ctx context.Context, d *csi.Driver) (next *csi.Driver, err error) {
	defer d.Close()
	own, stop := context.WithCancel(ctx)
	defer stop()
	endpoint := cmp.Or(k.Endpoint, filepath.Join(k.Plugins, d.Name, "csi.sock"))
	if k.Announced != nil {
		k.Announced(d.Name)
	}
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- Registrar{
			Driver: d.Name, Endpoint: endpoint, Path: Path(k.Dir, d.Name), Patient: k.Patient,
			NodeOnly: k.NodeOnly, Changes: k.Changes, Log: k.Log,
		}.Run(own)
	}()
	if err = d.AwaitLoss(own); err == nil {
		k.Log.Warn("the driver is unavailable", "driver", d.Name)
		next, err = k.await(own)
	}
	stop()
	if err := <-ended; err != nil {
		if next != nil {
			_ = next.Close()
		}
		return nil, err
	}
	return next, err
}
