package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/bridge"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/kube"
)

// FlexBridgeOptions say how the FlexVolume drivers of a host are served.
type FlexBridgeOptions struct {
	// Node is the name of the host's Node.
	Node string
	// PluginDir is where the drivers are; it is made when it is not there.
	PluginDir string
	// RootDir holds mounts and records. Its path has three parts.
	RootDir string
	// SocketDir gets a directory with a socket for each driver, RegistryDir the
	// sockets by which the node agent finds them.
	SocketDir, RegistryDir string
	// ConfigFile is the administrator's; empty is none.
	ConfigFile string
	// Client tells on the Node which drivers there are; nil tells nobody.
	Client kubernetes.Interface
	// Objects has it make the CSIDriver objects of the drivers as well.
	Objects bool
	// Log receives what is worth telling.
	Log *slog.Logger
}

// FlexBridge finds the FlexVolume drivers of a host and serves them as CSI
// drivers until ctx ends. Volumes stay mounted when it ends.
func FlexBridge(ctx context.Context, o FlexBridgeOptions) error {
	config, err := o.config()
	if err != nil {
		return err
	}
	host := &host.Host{
		Dir: o.PluginDir, StateDir: filepath.Join(o.RootDir, "state"), Log: o.Log,
		Options: func(n decide.Name) driver.Options { return driver.Options{Settings: config.Of(n), Cgroup: o.cgroup(n)} },
	}
	objects := newFlexObjects(o)
	b, err := bridge.Open(bridge.Options{
		Host: host, Node: o.Node, RootDir: o.RootDir, SocketDir: o.SocketDir, RegistryDir: o.RegistryDir, Config: config,
		Changed: objects.want, Log: o.Log,
	})
	if err != nil {
		return err
	}
	parts := []Part{
		{Name: "flex host", Run: host.Run},
		{Name: "flex report", Run: func(ctx context.Context) error { return host.Tell(ctx, o.RootDir) }},
		{Name: "flex bridge", Run: b.Run},
	}
	if o.Client != nil {
		defer host.Subscribe(objects.hear)()
		parts = append(parts, Part{Name: "flex objects", Run: objects.run})
	}
	return errors.Join(RunParts(ctx, o.Log, parts), b.Close())
}

func (o FlexBridgeOptions) config() (decide.Config, error) {
	if o.ConfigFile == "" {
		return decide.Config{}, nil
	}
	text, err := os.ReadFile(o.ConfigFile)
	if err != nil {
		return decide.Config{}, fmt.Errorf("read configuration of FlexVolume drivers: %w", err)
	}
	config, err := decide.ParseConfig(text)
	if err != nil {
		return config, fmt.Errorf("read configuration %s: %w", o.ConfigFile, err)
	}
	return config, nil
}

// cgroup returns where a driver's processes live, "" where we do.
func (o FlexBridgeOptions) cgroup(n decide.Name) string {
	dir, err := driver.Cgroup(n)
	if err != nil {
		o.Log.Warn("what the driver leaves running may end with this process", "driver", n.String(), "err", err)
	}
	return dir
}

// FlexTranslation shows FlexVolumes as the CSI volumes that the bridge serves.
// It is for a control plane without controllers of its own for them.
func FlexTranslation() kube.Translation {
	return kube.Translation{Volume: decide.SourceOf, Inline: decide.InlineOf}
}
