package cli

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
)

func (s *shell) registrarCommand() *cobra.Command {
	var o RegistrarOptions
	c := &cobra.Command{
		Use:   "registrar",
		Short: "Announce a driver to the kubelet of its node",
		Long: `Announce a CSI driver to the kubelet of its node, or to volplane's node agent,
until it is told to end: it takes the place of node-driver-registrar. A driver
that comes again is announced again. It ends with an error when the kubelet
refuses the driver.`,
		Example: `  volplane registrar --csi-address /csi/csi.sock \
      --kubelet-registration-path /var/lib/kubelet/plugins/csi.example.com/csi.sock`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.registrar(cmd.Context(), o) },
	}
	f := c.Flags()
	f.StringVar(&o.Socket, "csi-address", "/run/csi/socket", "socket of the driver, which may start later")
	f.StringVar(&o.Endpoint, "kubelet-registration-path", "",
		"the same socket as the kubelet sees it (default /var/lib/kubelet/plugins/DRIVER/csi.sock)")
	f.StringVar(&o.Dir, "plugin-registration-path", "/registration", "the kubelet's directory of registration sockets")
	return c
}

func (s *shell) registrar(ctx context.Context, o RegistrarOptions) error {
	for flag, path := range map[string]string{"kubelet-registration-path": o.Endpoint, "plugin-registration-path": o.Dir} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("--%s %s is no absolute path", flag, path)
		}
	}
	o.Log = s.log()
	return s.programs.Registrar(ctx, o)
}
