package program

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// StorageSocket is where systemd finds the storage provider "volplane".
	StorageSocket = "/run/systemd/io.systemd.StorageProvider/volplane"
	// StorageGrace is how long somebody who was given a volume may have it in a way that nobody sees, before it is
	// mounted. It is longer than any call.
	StorageGrace = 2 * time.Minute
)

// StorageOptions configure the storage provider of systemd.
type StorageOptions struct {
	// Socket is the path of its socket; empty for one that systemd hands over.
	Socket string
	// Config is the client configuration of a user who may create claims and Pods in Namespace.
	Config *rest.Config
	// Namespace has the claims that are the provider's volumes.
	Namespace string
	// Node is the node agent of this host.
	Node string
	// Grace is how long a volume stays mounted after it was given to somebody who has not mounted it.
	Grace time.Duration
	// Version is that of this program.
	Version string
	// Why explains in a sentence what a Pod waits for; nil, or an empty sentence, if that is not known.
	Why func(ctx context.Context, namespace, pod string) string
	// Log is the log of the program.
	Log *slog.Logger
}
