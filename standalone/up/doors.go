package up

import (
	"context"
	"time"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/options"
)

// Door configures the volume plugin of docker and podman, or the storage provider of systemd.
type Door struct {
	// Socket is its path; empty means the one that systemd passes, if any.
	Socket string
	// Namespace has the claims that are the volumes behind it.
	Namespace string
}

// doors returns the parts that serve claims outside of Kubernetes, if they are enabled. Their sockets exist before the
// control plane is ready, for programs that are ordered after it.
func (o Options) doors(ctx context.Context, config *rest.Config) ([]lifecycle.Part, error) {
	with := func(d Door, grace time.Duration) *options.DoorOptions {
		return &options.DoorOptions{
			Socket: d.Socket, Config: config, Namespace: d.Namespace, Node: o.Node, Grace: grace, Version: o.Version, Log: o.Log,
		}
	}
	return app.Doors(ctx, with(o.Docker, options.DockerGrace), with(o.Storage, options.StorageGrace))
}
