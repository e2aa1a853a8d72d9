package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/hosting/local"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/volume"
)

// Node runs a node agent until ctx ends. Mounts stay when the agent ends.
func Node(ctx context.Context, o options.NodeOptions) error { return runNode(ctx, o, nil) }

// Node runs the node agent of this process until ctx ends, when the controllers have begun to read.
func (p *Plane) Node(ctx context.Context, o options.NodeOptions) error {
	return lifecycle.After(p.lent, func(ctx context.Context) error { return runNode(ctx, o, p) })(ctx)
}

// runNode runs a node agent that shares caches with a plane in its process, or reads for itself what concerns its node.
func runNode(ctx context.Context, o options.NodeOptions, with *Plane) error {
	if o.StatsEvery != 0 && o.StatsEvery < time.Second {
		return fmt.Errorf("node %s: volumes cannot be asked for their state every %s: a second is the least", o.Name,
			o.StatsEvery)
	}
	config := rest.CopyConfig(o.Config)
	config.QPS, config.UserAgent = -1, "volplane/node"
	var client kubernetes.Interface
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of node %s: %w", o.Name, err)
	}
	if o.Bridged {
		client = kube.Translated(client, flex.Translation())
	}
	caches := kube.NewNodeCaches(client, o.Name)
	with.share(caches)
	with.borrow(caches)
	o.Dial = append(slices.Clone(o.Dial), csi.WithCallLog(csi.NewCallLog(o.Log)))
	if o.Metrics != nil {
		o.Dial = append(o.Dial, csi.WithMeter(o.Metrics.Call))
	}
	agent, err := node.New(node.Options{
		Name: o.Name, RootDir: o.RootDir, Protected: o.Keep, Client: client, Caches: caches, ByName: with == nil,
		Drivers: o.Drivers, Dial: o.Dial, StatsEvery: o.StatsEvery, ControlPlane: o.ControlPlane, Sole: o.Sole,
		Restored: o.Restored,
		Events:   kube.NewNodeRecorder(ctx, client, "node", o.Name), Log: o.Log,
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	measureNode(o.Metrics, agent)
	return agent.Run(ctx)
}

// LocalDriver serves the bundled CSI driver over its socket and registers it with
// the node agent, until ctx ends. Volumes stay mounted when the driver ends.
func LocalDriver(ctx context.Context, o options.DriverOptions) error {
	return local.Serve(ctx, local.Options{
		NodeID:             o.NodeID,
		PoolDir:            o.PoolDir,
		Keep:               o.Keep,
		Endpoint:           filepath.Join(o.RootDir, "plugins", volume.LocalDriver, "csi.sock"),
		RegistrationSocket: filepath.Join(o.RootDir, "plugins_registry", volume.LocalDriver+"-reg.sock"),
		Log:                o.Log,
	})
}

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

// serveBeside is served for a program beside a driver. In a container, the kubelet is given the error, too.
func serveBeside(
	ctx context.Context, at []sidecar.HTTPOptions, version string, ready []observe.Check, log *slog.Logger,
	run func(context.Context, *observe.Registry) error,
) error {
	limitMemory()
	go newMemoryReleaser().run(ctx)
	err := served(ctx, at, version, ready, log, run)
	tellTermination(terminationLog, err)
	return err
}

// ServeNode runs what a node agent's process does, which is given the registry that counts it, and serves metrics and
// health beside it, if the options say so.
func ServeNode(ctx context.Context, o options.NodeOptions, run func(context.Context, options.NodeOptions) error) error {
	return served(ctx, o.HTTP, o.Version, nil, o.Log, func(ctx context.Context, metrics *observe.Registry) error {
		o.Metrics = metrics
		return run(ctx, o)
	})
}
