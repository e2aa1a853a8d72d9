package csitest

import (
	"context"
	"log/slog"

	"volplane.dev/volplane/internal/csi/registrar"
)

// Register registers the driver with the node agent that watches dir, until the test ends. The test
// fails if the agent refuses it.
func (d *Driver) Register(dir string) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	r := registrar.Registrar{
		Driver: d.Name(), Endpoint: d.Socket, Path: registrar.Path(dir, d.Name()), Log: slog.New(slog.DiscardHandler),
	}
	go func() { ended <- r.Run(ctx) }()
	d.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			d.t.Error(err)
		}
	})
}
