package host

import (
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
)

// bridgeFlags are the flags of a node agent that also runs a bridge.
type bridgeFlags struct{ plugins, root, config string }

func (b *bridgeFlags) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&b.plugins, "volume-plugin-dir", "",
		"plugin directory of FlexVolume drivers (default: FlexVolumes are not served)")
	f.StringVar(&b.root, "flex-root-dir", shell.FlexRoot,
		"directory for mounts and records of FlexVolume drivers; its path must have three components")
	f.StringVar(&b.config, "flex-config", "", "configuration file with the FlexVolume drivers that Pods may use")
}

// options returns the options of a node's bridge; nil if it has none.
func (b *bridgeFlags) options(node, root string, log *slog.Logger) *shell.BridgeOptions {
	if b.plugins == "" {
		return nil
	}
	return &shell.BridgeOptions{
		Node: node, PluginDir: b.plugins, RootDir: b.root, ConfigFile: b.config, Log: log,
		SocketDir: filepath.Join(root, "plugins"), RegistryDir: filepath.Join(root, "plugins_registry"),
	}
}
