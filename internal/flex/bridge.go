package flex

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
	"volplane.dev/volplane/internal/parts"
)

// BridgeOptions say how the FlexVolume drivers of a host are served.
type BridgeOptions struct {
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

// Bridge finds the FlexVolume drivers of a host and serves them as CSI
// drivers until ctx ends. Volumes stay mounted when it ends.
func Bridge(ctx context.Context, o BridgeOptions) error {
	config, err := o.config()
	if err != nil {
		return err
	}
	h := &host.Host{
		Dir: o.PluginDir, StateDir: filepath.Join(o.RootDir, "state"), Log: o.Log,
		Options: func(n decide.Name) driver.Options { return driver.Options{Settings: config.Of(n), Cgroup: o.cgroup(n)} },
	}
	objects := newObjects(o)
	b, err := bridge.Open(bridge.Options{
		Host: h, Node: o.Node, RootDir: o.RootDir, SocketDir: o.SocketDir, RegistryDir: o.RegistryDir, Config: config,
		Changed: objects.want, Log: o.Log,
	})
	if err != nil {
		return err
	}
	all := []parts.Part{
		{Name: "flex host", Run: h.Run},
		{Name: "flex report", Run: func(ctx context.Context) error { return h.Tell(ctx, o.RootDir) }},
		{Name: "flex bridge", Run: b.Run},
	}
	if o.Client != nil {
		defer h.Subscribe(objects.hear)()
		all = append(all, parts.Part{Name: "flex objects", Run: objects.run})
	}
	return errors.Join(parts.Run(ctx, o.Log, all), b.Close())
}

func (o BridgeOptions) config() (decide.Config, error) {
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
func (o BridgeOptions) cgroup(n decide.Name) string {
	dir, err := driver.Cgroup(n)
	if err != nil {
		o.Log.Warn("what the driver leaves running may end with this process", "driver", n.String(), "err", err)
	}
	return dir
}

// Translation shows FlexVolumes as the CSI volumes that the bridge serves.
// It is for a control plane without controllers of its own for them.
func Translation() kube.Translation {
	return kube.Translation{Volume: decide.SourceOf, Inline: decide.InlineOf}
}
