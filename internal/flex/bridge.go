package flex

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/bridge"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/flex/install"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/lifecycle"
)

// BridgeOptions configure the bridge of a host.
type BridgeOptions struct {
	// Node is the name of the host's Node.
	Node string
	// PluginDir is the directory of the drivers; it is created if it does not exist.
	PluginDir string
	// RootDir is the directory of mounts and records. Its path must have three components.
	RootDir string
	// SocketDir is the directory below which each driver gets a directory with its CSI socket.
	// RegistryDir is the directory of the registration sockets, by which the node agent discovers
	// the drivers.
	SocketDir, RegistryDir string
	// ConfigFile is the path of the administrator's configuration; empty if there is none.
	ConfigFile string
	// Client writes the state of the drivers to annotations of the Node; nil writes nothing.
	Client kubernetes.Interface
	// Objects says that the bridge also creates the CSIDriver objects of the drivers.
	Objects bool
	// Alone says that no node agent of this process calls the drivers, and records the calls in the log of calls.
	Alone bool
	// Log is the log of the bridge.
	Log *slog.Logger
}

// Bridge discovers the FlexVolume drivers of a host and serves them as CSI drivers until ctx ends.
// Volumes stay mounted when it ends. It may be called again then.
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
	var calls *csi.CallLog
	if o.Alone {
		calls = csi.NewCallLog(o.Log)
	}
	b, err := bridge.Open(bridge.Options{
		Host: h, Node: o.Node, RootDir: o.RootDir, SocketDir: o.SocketDir, RegistryDir: o.RegistryDir, Config: config,
		Changed: objects.addServed, Calls: calls, Log: o.Log,
	})
	if err != nil {
		return err
	}
	all := []lifecycle.Part{
		{Name: "flex host", Run: h.Run},
		{Name: "flex report", Run: func(ctx context.Context) error { return h.ServeReport(ctx, o.RootDir) }},
		{Name: "flex bridge", Run: b.Run},
	}
	if o.Client != nil {
		defer h.Subscribe(objects.setState)()
		all = append(all, lifecycle.Part{Name: "flex objects", Run: objects.run})
	}
	return errors.Join(lifecycle.Run(ctx, o.Log, all), b.Close())
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

// cgroup returns the cgroup of a driver's processes; "" is the cgroup of this process.
func (o BridgeOptions) cgroup(n decide.Name) string {
	dir, err := driver.Cgroup(n)
	if err != nil {
		o.Log.Warn("the driver has no cgroup of its own: processes that it leaves running may end with this process",
			"driver", n.String(), "err", err)
	}
	return dir
}

// Root returns the root directory of the bridge in a control plane with a data directory.
func Root(dataDir string) string { return install.RootOf(dataDir) }

// Translation presents FlexVolumes as the CSI volumes that the bridge serves. It is for a control
// plane that has no controllers of its own for FlexVolumes.
func Translation() kube.Translation {
	return kube.Translation{Volume: decide.SourceOf, Inline: decide.InlineOf}
}
