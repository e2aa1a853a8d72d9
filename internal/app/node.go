package app

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/driver/local"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node"
	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/volume"
)

// Node runs a node agent until ctx ends. Mounts stay when the agent ends.
func Node(ctx context.Context, o program.NodeOptions) error { return runNode(ctx, o, nil) }

// runNode runs a node agent that shares caches with a plane in its process, or reads for itself what concerns its node.
func runNode(ctx context.Context, o program.NodeOptions, with *Plane) error {
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
		Drivers: o.Drivers, Dial: o.Dial, StatsEvery: o.StatsEvery, ControlPlane: o.ControlPlane, Restored: o.Restored,
		Events: kube.NewNodeRecorder(ctx, client, "node", o.Name), Log: o.Log,
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	measureNode(o.Metrics, agent)
	return agent.Run(ctx)
}

// LocalDriver serves the bundled CSI driver over its socket and registers it with
// the node agent, until ctx ends. Volumes stay mounted when the driver ends.
func LocalDriver(ctx context.Context, o program.DriverOptions) error {
	return local.Serve(ctx, local.Options{
		NodeID:             o.NodeID,
		PoolDir:            o.PoolDir,
		Keep:               o.Keep,
		Endpoint:           filepath.Join(o.RootDir, "plugins", volume.LocalDriver, "csi.sock"),
		RegistrationSocket: filepath.Join(o.RootDir, "plugins_registry", volume.LocalDriver+"-reg.sock"),
		Log:                o.Log,
	})
}
