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

// NodeOptions says what one node agent works with.
type NodeOptions struct {
	// Name is the Node's name and must be the one in the identity of Config.
	Name string
	// RootDir holds the agent's sockets, journal and mounts; one agent at a
	// time uses it.
	RootDir string
	// Keep are further directories that no volume is mounted at.
	Keep []string
	// Config is the way to the API server, with the node's own identity.
	Config *rest.Config
	// Drivers receives the drivers that register on this node. In a process
	// that runs the control plane as well it is the control plane's set.
	Drivers *csi.Set
	// ControlPlane says that it is so.
	ControlPlane bool
	// Flex is as in ControlPlaneOptions, and goes with it.
	Flex bool
	// Log receives what is worth telling.
	Log *slog.Logger
}

// Node runs a node agent until ctx ends. Mounts stay as they are when it ends.
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

// DriverOptions says where one instance of the bundled driver works.
type DriverOptions struct {
	// NodeID is the node's name towards the driver.
	NodeID string
	// RootDir is the root directory of the node agent that it registers with.
	RootDir string
	// PoolDir holds the volumes. Several instances on one host may share it.
	PoolDir string
	// Keep is how many bytes of the pool's disk volumes leave to others.
	Keep int64
	// Log receives what is worth telling.
	Log *slog.Logger
}

// LocalDriver serves the bundled CSI driver over its socket, and announces it
// to the node agent, until ctx ends. Volumes stay mounted when it ends.
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
