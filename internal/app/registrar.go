package app

import (
	"context"

	"volplane.dev/volplane/internal/beside"
	"volplane.dev/volplane/internal/sidecar"
)

// Registrar registers a driver with the node agent of its host until ctx ends or the agent refuses the driver.
func Registrar(ctx context.Context, o sidecar.RegistrarOptions) error {
	return beside.Registrar(ctx, o)
}

// Liveness answers a kubelet's question whether a driver is ready, until ctx ends.
func Liveness(ctx context.Context, o sidecar.LivenessOptions) error {
	return beside.Liveness(ctx, o)
}
