package app

import (
	"context"
	"path/filepath"

	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/volume"
)

// Registrar waits for a driver and registers it with the node agent until ctx ends or the agent refuses the driver. It
// needs the driver's name only, so the node half of a driver in two processes is registered like any other.
func Registrar(ctx context.Context, o program.RegistrarOptions) error {
	return registrar.Keeping{
		Socket: o.Socket, Endpoint: o.Endpoint, Plugins: filepath.Join(volume.KubeletDir, "plugins"), Dir: o.Dir, Log: o.Log,
	}.Run(ctx)
}
