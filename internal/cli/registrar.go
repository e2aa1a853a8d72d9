package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/volume"
)

func (s *shell) registrarCommand() *cobra.Command {
	var o program.RegistrarOptions
	c := &cobra.Command{
		Use:   "registrar",
		Short: "Register a driver with the kubelet of its node",
		Long: `Register a CSI driver with the kubelet of its node, or with volplane's node
agent, and run until terminated. This command replaces node-driver-registrar.
A driver that restarts is registered again. The command exits with an error if
the kubelet refuses the driver.

In a container, mount the kubelet's directory of registration sockets at
/registration. On a host without that directory, the driver registers with the
node agent or kubelet that runs there.`,
		Example: `  volplane registrar --csi-address /csi/csi.sock \
      --kubelet-registration-path /var/lib/kubelet/plugins/csi.example.com/csi.sock`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("plugin-registration-path") {
				if err := s.findRegistry(&o, isDirectory); err != nil {
					return err
				}
			}
			return s.registrar(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Socket, "csi-address", "/run/csi/socket", "path of the driver's socket; the driver may start later")
	f.StringVar(&o.Endpoint, "kubelet-registration-path", "",
		"path of the same socket as the kubelet sees it (default /var/lib/kubelet/plugins/DRIVER/csi.sock)")
	f.StringVar(&o.Dir, "plugin-registration-path", containerRegistry,
		"directory of the kubelet's registration sockets, or else that of the agent on this host")
	return c
}

// containerRegistry is the directory of registration sockets in a container beside a driver.
const containerRegistry = "/registration"

// findRegistry chooses the directory of registration sockets that somebody watches here: that of a container, or of the
// node agent or kubelet of this host, which see the driver's socket at the same path.
func (s *shell) findRegistry(o *program.RegistrarOptions, is func(dir string) bool) error {
	if is(containerRegistry) {
		return nil
	}
	agent, err := s.rootDir("")
	if err != nil {
		return err
	}
	var found, looked []string
	for _, root := range []string{agent, volume.KubeletDir} {
		dir := filepath.Join(root, "plugins_registry")
		looked = append(looked, dir)
		if is(dir) {
			found = append(found, dir)
		}
	}
	switch len(found) {
	case 0:
		return fmt.Errorf("nobody registers drivers here: there is neither %[1]s nor %[2]s; in a container mount the "+
			"kubelet's directory at %[1]s, on a host start 'volplane up' or 'volplane node', or name the directory with "+
			"--plugin-registration-path", containerRegistry, strings.Join(looked, " nor "))
	case 1:
	default:
		return fmt.Errorf("both a node agent and a kubelet register drivers here: choose %s with "+
			"--plugin-registration-path", strings.Join(found, " or "))
	}
	o.Dir = found[0]
	if o.Endpoint == "" {
		o.Endpoint, err = filepath.Abs(o.Socket)
	}
	return err
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func (s *shell) registrar(ctx context.Context, o program.RegistrarOptions) error {
	for flag, path := range map[string]string{"kubelet-registration-path": o.Endpoint, "plugin-registration-path": o.Dir} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("--%s %s is not an absolute path", flag, path)
		}
	}
	o.Log = s.log()
	return s.programs.Registrar(ctx, o)
}
