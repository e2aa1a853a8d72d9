package program

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// DockerSocket is where docker finds the plugin "volplane".
	DockerSocket = "/run/docker/plugins/volplane.sock"
	// DockerGrace is how long an engine may take from a mount to the start of the container: it mounts the others first,
	// and may copy the files of an image.
	DockerGrace = time.Hour
	// StorageSocket is where systemd finds the storage provider "volplane".
	StorageSocket = "/run/systemd/io.systemd.StorageProvider/volplane"
	// StorageGrace is how long a client that was given a volume may have it in a way that cannot be seen, before
	// it is mounted. It is longer than any call.
	StorageGrace = 2 * time.Minute
)

// DoorOptions configure a door to those outside of Kubernetes: the volume plugin of docker and podman, or the storage
// provider of systemd.
type DoorOptions struct {
	// Socket is the path of its socket; empty for one that systemd hands over.
	Socket string
	// Config is the client configuration of a user who may create claims and Pods in Namespace.
	Config *rest.Config
	// Namespace has the claims that are the volumes behind the door.
	Namespace string
	// Node is the node agent of this host.
	Node string
	// Grace is how long a client counts as a user of a volume that nothing has mounted.
	Grace time.Duration
	// Version is that of this program.
	Version string
	// Why explains in a sentence what a Pod waits for; nil, or an empty sentence, if that is not known.
	Why func(ctx context.Context, namespace, pod string) string
	// Log is the log of the program.
	Log *slog.Logger
}
