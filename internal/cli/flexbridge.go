package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// BridgeOptions say how the FlexVolume drivers of a host are served.
type BridgeOptions = flex.BridgeOptions

// translation shows volumes of another kind as CSI volumes.
func translation() kube.Translation { return flex.Translation() }

// bridgeFlags are those of a node agent that has FlexVolume drivers beside it.
type bridgeFlags struct{ plugins, root, config string }

func (b *bridgeFlags) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&b.plugins, "volume-plugin-dir", "",
		"serve the FlexVolume drivers in this directory, and mount FlexVolumes")
	f.StringVar(&b.root, "flex-root-dir", defaultFlexRoot,
		"directory of their mounts and records; its path has three parts")
	f.StringVar(&b.config, "flex-config", "", "file that says which FlexVolume drivers Pods may use, and how")
}

// options are those of a node's bridge, nil where there is none.
func (b *bridgeFlags) options(node, root string, log *slog.Logger) *BridgeOptions {
	if b.plugins == "" {
		return nil
	}
	return &BridgeOptions{
		Node: node, PluginDir: b.plugins, RootDir: b.root, ConfigFile: b.config, Log: log,
		SocketDir: filepath.Join(root, "plugins"), RegistryDir: filepath.Join(root, "plugins_registry"),
	}
}

func (s *shell) flexBridgeCommand() *cobra.Command {
	o := BridgeOptions{}
	objects := false
	c := &cobra.Command{
		Use:   "bridge",
		Short: "Serve the FlexVolume drivers of this host as CSI drivers",
		Long: `Serve each FlexVolume driver of this host as a CSI driver, until it is told to
end: example.com/lofs becomes lofs.example.com. Volumes stay mounted when it ends.
The control plane of 'volplane up' does this by itself; in a cluster of
Kubernetes it runs on each node, as root on the host.

Drivers are found, and found anew, as they are installed, changed and removed.

A CSI driver needs its CSIDriver object, from which Kubernetes knows whether it
attaches. With --objects they are made, with the rights of the kubeconfig, and
the Node says which drivers there are and what is wrong with them.`,
		Example: `  volplane flex bridge --node $(hostname)
  volplane flex bridge --node n2 --socket-dir /var/lib/volplane/node/plugins \
      --plugin-registration-path /var/lib/volplane/node/plugins_registry`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.flexBridge(cmd.Context(), o, objects) },
	}
	f := c.Flags()
	f.StringVar(&o.Node, "node", "", "name of this host's Node (default the host's name)")
	f.StringVar(&o.PluginDir, "dir", "/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
		"directory of the drivers, which is made")
	f.StringVar(&o.RootDir, "root-dir", defaultFlexRoot, "directory of mounts and records; its path has three parts")
	f.StringVar(&o.SocketDir, "socket-dir", filepath.Join(volume.KubeletDir, "plugins"),
		"where each driver gets a directory with its socket")
	f.StringVar(&o.RegistryDir, "plugin-registration-path", filepath.Join(volume.KubeletDir, "plugins_registry"),
		"the node agent's directory of registration sockets")
	f.StringVar(&o.ConfigFile, "config", "", "file that says which drivers Pods may use, and how")
	f.BoolVar(&objects, "objects", false, "make the CSIDriver objects, and annotate the Node")
	return c
}

func (s *shell) flexBridge(ctx context.Context, o BridgeOptions, objects bool) error {
	for flag, path := range map[string]string{
		"dir": o.PluginDir, "root-dir": o.RootDir, "socket-dir": o.SocketDir, "plugin-registration-path": o.RegistryDir,
	} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("--%s %q is no absolute path", flag, path)
		}
	}
	if o.Node == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("the name of this host is not known: %w; name its Node with --node", err)
		}
		o.Node = strings.ToLower(name)
	}
	if objects {
		client, _, err := s.client()
		if err != nil {
			return err
		}
		o.Client, o.Objects = client, true
	}
	o.Log = s.log()
	return s.programs.Bridge(ctx, o)
}
