//go:build linux

package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/volume"
)

func (s *shell) registrarCommand() *cobra.Command {
	return s.roleCommand(sidecar.Registrar, &cobra.Command{
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
	}, func(cmd *cobra.Command, o sidecar.Options) error {
		if o.ProbeOnly {
			return nil
		}
		if !cmd.Flags().Changed("plugin-registration-path") {
			if err := s.findRegistry(&o.Registrar, isDirectory); err != nil {
				return err
			}
		}
		return s.registrar(cmd.Context(), o.Registrar)
	})
}

func (s *shell) livenessCommand() *cobra.Command {
	return s.roleCommand(sidecar.Liveness, &cobra.Command{
		Use:   "liveness",
		Short: "Answer a kubelet whether a driver lives",
		Long: `Serve /healthz until terminated: each request makes a new connection to the
driver and asks it whether it is ready. This command replaces livenessprobe.`,
		Example: `  volplane liveness --csi-address /csi/csi.sock --http-endpoint :9808`,
	}, func(cmd *cobra.Command, o sidecar.Options) error { return s.liveness(cmd.Context(), o.Liveness) })
}

// roleCommand completes the command of a role with the role's flags.
func (s *shell) roleCommand(
	r sidecar.Role, c *cobra.Command, run func(cmd *cobra.Command, o sidecar.Options) error,
) *cobra.Command {
	var o sidecar.Options
	c.Args = cobra.NoArgs
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.Settle(r, cmd.Flags(), os.Getenv); err != nil {
			return err
		}
		s.flags.logFormat = o.LogFormat
		return run(cmd, o)
	}
	o.AddRole(c.Flags(), r)
	return c
}

func (s *shell) liveness(ctx context.Context, o sidecar.LivenessOptions) error {
	o.Log = s.log()
	return s.programs.Liveness(ctx, o)
}

// containerRegistry is the directory of registration sockets in a container beside a driver.
const containerRegistry = "/registration"

// findRegistry chooses the directory of registration sockets that is watched here: that of a container, or of the node
// agent or kubelet of this host, which see the driver's socket at the same path.
func (s *shell) findRegistry(o *sidecar.RegistrarOptions, is func(dir string) bool) error {
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
		return fmt.Errorf("no node agent registers drivers here: there is neither %[1]s nor %[2]s; in a container mount the "+
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

func (s *shell) registrar(ctx context.Context, o sidecar.RegistrarOptions) error {
	for flag, path := range map[string]string{"kubelet-registration-path": o.Endpoint, "plugin-registration-path": o.Dir} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("--%s %s is not an absolute path", flag, path)
		}
	}
	o.Log = s.log()
	return s.programs.Registrar(ctx, o)
}
