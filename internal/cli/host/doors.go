package host

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/process/options"
)

func dockerCommand(s *shell.Shell) *cobra.Command {
	return doorCommand(s, &cobra.Command{
		Use:   "docker-plugin",
		Short: "Serve claims as volumes of docker and podman on this host",
		Long: `Serve the claims of a namespace as volumes of docker and podman on this host,
until terminated. The node agent of this host mounts them. Without this command,
'volplaned up --docker' and 'volplane node --docker' do the same.

  docker volume create -d volplane -o size=10Gi data
  docker run -v data:/data IMAGE

The socket is that of systemd's volplane-docker.socket, if it has started the
command.`,
	}, doorFlags{
		options.DockerSocket, "socket at which docker finds the plugin by the file's name",
		options.DockerGrace, "how long a container counts as a user of a volume that nothing has mounted",
	}, s.Programs.Docker)
}

func storageCommand(s *shell.Shell) *cobra.Command {
	return doorCommand(s, &cobra.Command{
		Use:   "storage-provider",
		Short: "Serve claims as storage volumes of systemd on this host",
		Long: `Serve the claims of a namespace as storage volumes of systemd (since version 261)
on this host, until terminated. The node agent of this host mounts them. Without
this command, 'volplaned up --storage-provider' and 'volplane node
--storage-provider' do the same.

  storagectl volumes
  mount -t storage volplane:data /srv/data

The socket is that of systemd's volplane-storage.socket, if it has started the
command.`,
	}, doorFlags{
		options.StorageSocket, "socket at which systemd finds the provider by the file's name",
		options.StorageGrace, "how long an acquired volume that is not used stays mounted",
	}, s.Programs.StorageProvider)
}

// doorFlags are the defaults of a door's flags, and their help texts.
type doorFlags struct {
	socket, socketUsage string
	grace               time.Duration
	graceUsage          string
}

// doorCommand completes the command that serves a door.
func doorCommand(
	s *shell.Shell, c *cobra.Command, flags doorFlags, serve func(ctx context.Context, o options.DoorOptions) error,
) *cobra.Command {
	var o options.DoorOptions
	c.Args = cobra.NoArgs
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		client, _, err := s.Client()
		if err != nil {
			return err
		}
		if o.Node, err = s.NodeOf(cmd.Context(), client, o.Node); err != nil {
			return err
		}
		o.Grace, o.Log = cmp.Or(o.Grace, flags.grace), s.Log()
		if o, err = doorOptions(s, o); err != nil {
			return err
		}
		return serve(cmd.Context(), o)
	}
	f := c.Flags()
	f.StringVar(&o.Socket, "socket", flags.socket, flags.socketUsage)
	f.StringVar(&o.Node, "node", "", "node to mount on (default this host, or the only node)")
	f.DurationVar(&o.Grace, "grace", flags.grace, flags.graceUsage)
	return c
}

// doorOptions adds what the flags of all commands say: who serves the claims of which namespace.
func doorOptions(s *shell.Shell, o options.DoorOptions) (options.DoorOptions, error) {
	client, ns, err := s.Client()
	if err != nil {
		return o, err
	}
	if o.Config, err = s.Config(); err != nil {
		return o, err
	}
	o.Namespace, o.Version = ns, s.Version
	o.Why = func(ctx context.Context, ns, pod string) string { return shell.Answer(ctx, client, ns, pod) }
	return o, nil
}
