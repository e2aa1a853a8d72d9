package app

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/driver/local"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node"
	"volplane.dev/volplane/internal/volume"
)

// NodeOptions configure a node agent.
type NodeOptions struct {
	// Name is the Node's name and must be the one in the identity of Config.
	Name string
	// RootDir is the directory of the agent's sockets, journal and mounts; only one
	// agent at a time may use it.
	RootDir string
	// Keep are more directories over which no volume may be mounted.
	Keep []string
	// Config is the client configuration with the node's own identity.
	Config *rest.Config
	// Drivers is the set to which the agent adds the drivers that register on this
	// node. An agent in the control plane's process uses the control plane's set.
	Drivers *csi.Set
	// ControlPlane says that the agent runs in the control plane's process.
	ControlPlane bool
	// Flex has the same meaning and value as in ControlPlaneOptions.
	Flex bool
	// Log is the log of the program.
	Log *slog.Logger
}

// Node runs a node agent until ctx ends. Mounts stay when the agent ends.
func Node(ctx context.Context, o NodeOptions) error {
	config := rest.CopyConfig(o.Config)
	config.QPS, config.UserAgent = -1, "volplane/node"
	var client kubernetes.Interface
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of node %s: %w", o.Name, err)
	}
	if o.Flex {
		client = kube.Translated(client, flex.Translation())
	}
	caches := kube.NewNodeCaches(client, o.Name)
	agent, err := node.New(node.Options{
		Name: o.Name, RootDir: o.RootDir, Keep: o.Keep, Client: client, Caches: caches, Drivers: o.Drivers,
		ControlPlane: o.ControlPlane,
		Events:       kube.NewRecorder(ctx, client, "node"), Log: o.Log,
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	return agent.Run(ctx)
}

// DriverOptions configure one instance of the bundled driver.
type DriverOptions struct {
	// NodeID is the name of the node in calls of the driver.
	NodeID string
	// RootDir is the root directory of the node agent with which it registers.
	RootDir string
	// PoolDir is the directory of the volumes. Several instances on one host may
	// share it.
	PoolDir string
	// Keep is how many bytes of the pool's disk volumes may not use.
	Keep int64
	// Log is the log of the program.
	Log *slog.Logger
}

// LocalDriver serves the bundled CSI driver over its socket and registers it with
// the node agent, until ctx ends. Volumes stay mounted when the driver ends.
func LocalDriver(ctx context.Context, o DriverOptions) error {
	return local.Serve(ctx, local.Options{
		NodeID:             o.NodeID,
		PoolDir:            o.PoolDir,
		Keep:               o.Keep,
		Endpoint:           filepath.Join(o.RootDir, "plugins", volume.LocalDriver, "csi.sock"),
		RegistrationSocket: filepath.Join(o.RootDir, "plugins_registry", volume.LocalDriver+"-reg.sock"),
		Log:                o.Log,
	})
}
