package app

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/doors/docker"
	"volplane.dev/volplane/internal/doors/storageprovider"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/options"
)

// open makes the socket of a door, and returns what serves it until ctx ends; nil if the options name no socket and
// systemd hands over none. Calls wait at the socket as soon as the function returns: who starts at the same time finds
// it.
type open func(ctx context.Context, o options.DoorOptions) (serve func(ctx context.Context) error, err error)

// The names of the doors in logs and errors.
const (
	dockerName  = "docker"
	storageName = "storage provider"
)

// Docker serves docker's volumes until ctx ends.
func Docker(ctx context.Context, o options.DoorOptions) error {
	return serveDoor(ctx, dockerName, docker.Open, o)
}

// StorageProvider serves systemd's storage volumes until ctx ends.
func StorageProvider(ctx context.Context, o options.DoorOptions) error {
	return serveDoor(ctx, storageName, storageprovider.Open, o)
}

// Doors returns the volume plugin of docker and podman and the storage provider of systemd as parts of another program,
// which they never end: those that have options, and a socket of their own or of systemd's.
func Doors(ctx context.Context, forDocker, forSystemd *options.DoorOptions) ([]lifecycle.Part, error) {
	plugin, err := doorPart(ctx, dockerName, docker.Open, forDocker)
	if err != nil {
		return nil, err
	}
	provider, err := doorPart(ctx, storageName, storageprovider.Open, forSystemd)
	return append(plugin, provider...), err
}

var errNoSocket = errors.New("no socket: give --socket, or start it by systemd's socket unit")

func serveDoor(ctx context.Context, name string, open open, o options.DoorOptions) error {
	serve, err := open(ctx, o)
	if err == nil && serve == nil {
		err = errNoSocket
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return lifecycle.UnlessEnded(ctx, serve(ctx))
}

// doorPart returns a door as a part of another program, or none.
func doorPart(ctx context.Context, name string, open open, o *options.DoorOptions) ([]lifecycle.Part, error) {
	if o == nil {
		return nil, nil
	}
	with := *o
	if with.Why == nil {
		var err error
		if with.Why, err = explained(o.Config); err != nil {
			return nil, err
		}
	}
	serve, err := open(ctx, with)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if serve == nil {
		return nil, nil
	}
	return []lifecycle.Part{{Name: name, Run: func(ctx context.Context) error {
		if err := serve(ctx); err != nil && ctx.Err() == nil {
			o.Log.Error("volumes are no longer served", "door", name, "err", err)
		}
		<-ctx.Done()
		return nil
	}}}, nil
}

// explained returns a function that explains in a sentence what a Pod waits for.
func explained(config *rest.Config) (func(ctx context.Context, namespace, pod string) string, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of explanations: %w", err)
	}
	return func(ctx context.Context, namespace, pod string) string {
		return gather.New(client, gather.Options{Bridge: flex.Translation()}).Headline(ctx, "pod", namespace, pod)
	}, nil
}
