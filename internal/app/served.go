package app

import (
	"context"
	"errors"
	"log/slog"

	"volplane.dev/volplane/internal/observe"
	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/sidecar"
)

// served runs a program until it ends, and until then a server of its metrics and health at each of the addresses. If
// the server fails, the program is asked to end. Without an address nothing is counted, and the registry is nil.
func served(
	ctx context.Context, at []sidecar.HTTPOptions, version string, ready []observe.Check, log *slog.Logger,
	run func(context.Context, *observe.Registry) error,
) error {
	if len(at) == 0 {
		return run(ctx, nil)
	}
	var addresses []observe.Address
	for _, a := range at {
		addresses = append(addresses, observe.Address(a))
	}
	metrics := observe.New(version).WithProcess()
	server, err := observe.Listen(addresses, metrics, ready, log)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- server.Serve(ctx)
	}()
	err = run(ctx, metrics)
	stop()
	return errors.Join(err, <-ended)
}

// ServeNode runs what a node agent's process does, which is given the registry that counts it, and serves metrics and
// health beside it, if the options say so.
func ServeNode(ctx context.Context, o program.NodeOptions, run func(context.Context, program.NodeOptions) error) error {
	return served(ctx, o.HTTP, o.Version, nil, o.Log, func(ctx context.Context, metrics *observe.Registry) error {
		o.Metrics = metrics
		return run(ctx, o)
	})
}
