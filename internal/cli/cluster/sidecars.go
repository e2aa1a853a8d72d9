package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/volume"
)

func registrarCommand(s *shell.Shell) *cobra.Command {
	return roleCommand(s, sidecar.Registrar, &cobra.Command{
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
			if err := findRegistry(s, &o.Registrar, isDirectory); err != nil {
				return err
			}
		}
		return registrar(cmd.Context(), s, o.Registrar)
	})
}

func livenessCommand(s *shell.Shell) *cobra.Command {
	return roleCommand(s, sidecar.Liveness, &cobra.Command{
		Use:   "liveness",
		Short: "Probe a driver for the kubelet",
		Long: `Serve /healthz until terminated: each request makes a new connection to the
driver and asks it whether it is ready. This command replaces livenessprobe.`,
		Example: `  volplane liveness --csi-address /csi/csi.sock --http-endpoint :9808`,
	}, func(cmd *cobra.Command, o sidecar.Options) error { return liveness(cmd.Context(), s, o.Liveness) })
}

// roleCommand completes the command of a role with the role's flags.
func roleCommand(
	s *shell.Shell, r sidecar.Role, c *cobra.Command, run func(cmd *cobra.Command, o sidecar.Options) error,
) *cobra.Command {
	var o sidecar.Options
	c.Args = cobra.NoArgs
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.Settle(r, cmd.Flags(), os.Getenv); err != nil {
			return err
		}
		s.Flags.LogFormat = o.LogFormat
		return run(cmd, o)
	}
	o.AddRole(c.Flags(), r)
	return c
}

func liveness(ctx context.Context, s *shell.Shell, o sidecar.LivenessOptions) error {
	o.Log = s.Log()
	return s.Programs.Liveness(ctx, o)
}

// containerRegistry is the directory of registration sockets in a container beside a driver.
const containerRegistry = "/registration"

// findRegistry chooses the directory of registration sockets that is watched here: that of a container, or of the node
// agent or kubelet of this host, which see the driver's socket at the same path.
func findRegistry(s *shell.Shell, o *sidecar.RegistrarOptions, is func(dir string) bool) error {
	if is(containerRegistry) {
		return nil
	}
	agent, err := s.RootDir("")
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

func registrar(ctx context.Context, s *shell.Shell, o sidecar.RegistrarOptions) error {
	for flag, path := range map[string]string{"kubelet-registration-path": o.Endpoint, "plugin-registration-path": o.Dir} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("--%s %s is not an absolute path", flag, path)
		}
	}
	o.Log = s.Log()
	return s.Programs.Registrar(ctx, o)
}

func snapshotMetadataCommand(s *shell.Shell) *cobra.Command {
	return roleCommand(s, sidecar.SnapshotMetadata, &cobra.Command{
		Use:   "snapshot-metadata",
		Short: "Serve the changed blocks of a driver's snapshots",
		Long: `Serve the changed blocks of a CSI driver's snapshots to backup programs of a
Kubernetes cluster until terminated. This command replaces csi-snapshot-metadata.

Clients find the service by the SnapshotMetadataService that has the driver's
name. They show a token for its audience, and must be allowed to get the
VolumeSnapshot that they ask for. The certificate is read again when its files
change.`,
		Example: `  volplane snapshot-metadata --csi-address /csi/csi.sock \
      --tls-cert /certificates/tls.crt --tls-key /certificates/tls.key`,
	}, func(cmd *cobra.Command, o sidecar.Options) error {
		config, err := s.Config()
		if err != nil {
			return err
		}
		limit(config, o)
		return snapshotMetadata(cmd.Context(), s, o.SnapshotMetadata, config)
	})
}

func snapshotMetadata(
	ctx context.Context, s *shell.Shell, o sidecar.SnapshotMetadataOptions, config *rest.Config,
) error {
	return s.Programs.SnapshotMetadata(ctx, options.SnapshotMetadataOptions{
		SnapshotMetadataOptions: o, Config: config, Version: s.Version, Log: s.Log(),
	})
}
