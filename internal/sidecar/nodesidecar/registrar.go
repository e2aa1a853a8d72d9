package nodesidecar

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/process/healthz"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/volume"
)

// healthTimeout is the time limit of a question to the registrar itself, unless another one is set.
const healthTimeout = time.Second

// Registrar waits for a driver and registers it with the node agent until ctx ends or the agent refuses the driver. It
// needs the driver's name only, so the node half of a driver in two processes is registered like any other.
func Registrar(ctx context.Context, o sidecar.RegistrarOptions) error {
	var driver atomic.Pointer[string]
	keep := registrar.Keeping{
		Socket: o.Socket, Endpoint: o.Endpoint, Plugins: filepath.Join(volume.KubeletDir, "plugins"), Dir: o.Dir,
		Timeout: o.Timeout, Announced: func(name string) { driver.Store(&name) }, Log: o.Log,
	}
	if o.Health == "" {
		return keep.Run(ctx)
	}
	paths := healthz.Paths{"/healthz": healthz.Check(cmp.Or(o.Timeout, healthTimeout),
		func(ctx context.Context) healthz.Answer { return registrationHealth(ctx, o.Dir, driver.Load()) })}
	if o.Pprof {
		paths.Profiles()
	}
	return lifecycle.Run(ctx, o.Log, []lifecycle.Part{
		{Name: "health", Run: func(ctx context.Context) error { return healthz.Serve(ctx, o.Health, paths, o.Log) }},
		{Name: "registrar", Run: keep.Run},
	})
}

// registrationHealth says whether a node agent that asks the registration socket of a driver gets its answer. Without a
// name, the driver has not answered yet.
func registrationHealth(ctx context.Context, dir string, driver *string) healthz.Answer {
	if driver == nil {
		return healthz.Text(http.StatusNotFound, registrar.ErrNoSocket.Error())
	}
	switch err := registrar.Check(ctx, dir, *driver); {
	case err == nil:
		return healthz.Text(http.StatusOK, "ok")
	case errors.Is(err, registrar.ErrNoSocket):
		return healthz.Text(http.StatusNotFound, err.Error())
	default:
		return healthz.Text(http.StatusInternalServerError, err.Error())
	}
}
