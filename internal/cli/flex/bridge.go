package flex

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/volume"
)

func bridgeCommand(s *shell.Shell) *cobra.Command {
	o := shell.BridgeOptions{}
	objects := false
	c := &cobra.Command{
		Use:   "bridge",
		Short: "Serve the FlexVolume drivers of this host as CSI drivers",
		Long: `Serve each FlexVolume driver of this host as a CSI driver until terminated:
example.com/lofs becomes lofs.example.com. Volumes stay mounted when the command
ends. 'volplane up' includes a bridge; in a Kubernetes cluster, run this command
on each node, as root on the host.

The bridge watches the plugin directory for drivers that are installed, changed
or removed.

A CSI driver needs a CSIDriver object, which says whether the driver attaches.
With --objects the bridge creates these objects, with the rights of the
kubeconfig, and writes the state of the drivers into annotations of the Node.`,
		Example: `  volplane flex bridge --node $(hostname)
  volplane flex bridge --node n2 --socket-dir /var/lib/volplane/node/plugins \
      --plugin-registration-path /var/lib/volplane/node/plugins_registry`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return bridge(cmd.Context(), s, o, objects) },
	}
	f := c.Flags()
	f.StringVar(&o.Node, "node", "", "name of this host's Node (default that of its agent, else the host name)")
	f.StringVar(&o.PluginDir, "dir", "/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
		"plugin directory; it is created if it does not exist")
	f.StringVar(&o.RootDir, "root-dir", shell.FlexRoot,
		"directory for mounts and records; its path must have three components")
	f.StringVar(&o.SocketDir, "socket-dir", filepath.Join(volume.KubeletDir, "plugins"),
		"directory in which each driver gets a directory with its socket")
	f.StringVar(&o.RegistryDir, "plugin-registration-path", filepath.Join(volume.KubeletDir, "plugins_registry"),
		"the node agent's directory of registration sockets")
	f.StringVar(&o.ConfigFile, "config", "", "configuration file with the drivers that Pods may use")
	f.BoolVar(&objects, "objects", false, "create the CSIDriver objects, and annotate the Node")
	return c
}

func bridge(ctx context.Context, s *shell.Shell, o shell.BridgeOptions, objects bool) error {
	for flag, path := range map[string]string{
		"dir": o.PluginDir, "root-dir": o.RootDir, "socket-dir": o.SocketDir, "plugin-registration-path": o.RegistryDir,
	} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("--%s %q is not an absolute path", flag, path)
		}
	}
	o.Node = cmp.Or(o.Node, s.ThisNode())
	if objects {
		client, _, err := s.Client()
		if err != nil {
			return err
		}
		o.Client, o.Objects = client, true
	}
	o.Alone, o.Log = true, s.Log()
	return s.Programs.Bridge(ctx, o)
}
