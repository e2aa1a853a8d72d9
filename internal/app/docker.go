package app

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/door/docker"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/program"
)

// DockerPart returns the volume plugin of docker and podman as a part of another program, which it never ends; none if
// the options name no socket and systemd hands over none. Calls wait at the socket as soon as the function returns: an
// engine that starts at the same time finds it.
func DockerPart(ctx context.Context, o program.DockerOptions) ([]parts.Part, error) {
	l, err := docker.Listen(ctx, o.Socket)
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	if l == nil {
		return nil, nil
	}
	if o.Why == nil {
		if o.Why, err = explained(o.Config); err != nil {
			return nil, err
		}
	}
	d, err := docker.New(o)
	if err != nil {
		return nil, err
	}
	return doorPart("docker", o.Log, func(ctx context.Context) error { return d.Run(ctx, l) }), nil
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

// doorPart returns a door as a part of another program, which it never ends.
func doorPart(name string, log *slog.Logger, run func(ctx context.Context) error) []parts.Part {
	return []parts.Part{{Name: name, Run: func(ctx context.Context) error {
		if err := run(ctx); err != nil && ctx.Err() == nil {
			log.Error("volumes are not served any more", "door", name, "err", err)
		}
		<-ctx.Done()
		return nil
	}}}
}

// Docker serves docker's volumes until ctx ends.
func Docker(ctx context.Context, o program.DockerOptions) error {
	l, err := docker.Listen(ctx, o.Socket)
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	d, err := docker.New(o)
	if err != nil {
		return err
	}
	return parts.UnlessEnded(ctx, d.Run(ctx, l))
}
