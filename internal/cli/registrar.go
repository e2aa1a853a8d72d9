package cli

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/program"
)

func (s *shell) registrarCommand() *cobra.Command {
	var o program.RegistrarOptions
	c := &cobra.Command{
		Use:   "registrar",
		Short: "Register a driver with the kubelet of its node",
		Long: `Register a CSI driver with the kubelet of its node, or with volplane's node
agent, and run until terminated. This command replaces node-driver-registrar.
A driver that restarts is registered again. The command exits with an error if
the kubelet refuses the driver.`,
		Example: `  volplane registrar --csi-address /csi/csi.sock \
      --kubelet-registration-path /var/lib/kubelet/plugins/csi.example.com/csi.sock`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.registrar(cmd.Context(), o) },
	}
	f := c.Flags()
	f.StringVar(&o.Socket, "csi-address", "/run/csi/socket", "path of the driver's socket; the driver may start later")
	f.StringVar(&o.Endpoint, "kubelet-registration-path", "",
		"path of the same socket as the kubelet sees it (default /var/lib/kubelet/plugins/DRIVER/csi.sock)")
	f.StringVar(&o.Dir, "plugin-registration-path", "/registration", "directory of the kubelet's registration sockets")
	return c
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
