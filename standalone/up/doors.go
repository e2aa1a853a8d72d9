package up

import (
	"context"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/program"
)

// Docker configures the volume plugin of docker and podman.
type Docker struct {
	// Socket is its path; empty for the one that systemd hands over, if there is one.
	Socket string
	// Namespace has the claims that are the engine's volumes.
	Namespace string
}

// Storage configures the storage provider of systemd.
type Storage struct {
	// Socket is its path; empty for the one that systemd hands over, if there is one.
	Socket string
	// Namespace has the claims that are the provider's volumes.
	Namespace string
}

// doors returns the parts that serve claims to those outside of Kubernetes, if somebody wants them. Their sockets are
// there before the control plane is ready, for those who start after it.
func (o Options) doors(ctx context.Context, config *rest.Config) ([]parts.Part, error) {
	docker, err := o.docker(ctx, config)
	if err != nil {
		return nil, err
	}
	storage, err := app.StoragePart(ctx, program.StorageOptions{
		Socket: o.Storage.Socket, Config: config, Namespace: o.Storage.Namespace, Node: o.Node,
		Grace: program.StorageGrace, Version: o.Version, Log: o.Log,
	})
	return append(docker, storage...), err
}

// docker returns the part that serves docker's volumes, if somebody wants it.
func (o Options) docker(ctx context.Context, config *rest.Config) ([]parts.Part, error) {
	return app.DockerPart(ctx, program.DockerOptions{
		Socket: o.Docker.Socket, Config: config, Namespace: o.Docker.Namespace, Node: o.Node, Grace: program.DockerGrace,
		Log: o.Log,
	})
}
