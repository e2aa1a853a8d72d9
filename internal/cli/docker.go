//go:build linux

package cli

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/door"
	"volplane.dev/volplane/internal/program"
)

func (s *shell) dockerCommand() *cobra.Command {
	var o program.DockerOptions
	c := &cobra.Command{
		Use:   "docker-plugin",
		Short: "Serve claims as volumes of docker and podman on this host",
		Long: `Serve the claims of a namespace as volumes of docker and podman on this host,
until terminated. The node agent of this host mounts them. Without this command,
'volplaned up --docker' and 'volplane node --docker' do the same.

  docker volume create -d volplane -o size=10Gi data
  docker run -v data:/data IMAGE

The socket is that of systemd's volplane-docker.socket, if it has started the
command.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.docker(cmd.Context(), o) },
	}
	f := c.Flags()
	f.StringVar(&o.Socket, "socket", program.DockerSocket, "socket at which docker finds the plugin by the file's name")
	f.StringVar(&o.Node, "node", "", "node to mount on (default this host, or the only node)")
	f.DurationVar(&o.Grace, "grace", program.DockerGrace,
		"how long a container counts as a user of a volume that nothing has mounted")
	return c
}

func (s *shell) docker(ctx context.Context, o program.DockerOptions) error {
	client, _, err := s.client()
	if err != nil {
		return err
	}
	if o.Node, err = door.Node(ctx, client, o.Node); err != nil {
		return err
	}
	if o, err = s.dockerOptions(o); err != nil {
		return err
	}
	o.Log = s.log()
	return s.programs.Docker(ctx, o)
}

// dockerOptions adds what the flags of all commands say: who serves the claims of which namespace.
func (s *shell) dockerOptions(o program.DockerOptions) (program.DockerOptions, error) {
	client, ns, err := s.client()
	if err != nil {
		return o, err
	}
	if o.Config, err = s.config(); err != nil {
		return o, err
	}
	o.Namespace, o.Grace = ns, cmp.Or(o.Grace, program.DockerGrace)
	o.Why = func(ctx context.Context, ns, pod string) string { return s.answer(ctx, client, ns, pod) }
	return o, nil
}
