//go:build linux

package cli

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/door"
	"volplane.dev/volplane/internal/program"
)

func (s *shell) storageCommand() *cobra.Command {
	var o program.StorageOptions
	c := &cobra.Command{
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
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.storageProvider(cmd.Context(), o) },
	}
	f := c.Flags()
	f.StringVar(&o.Socket, "socket", program.StorageSocket,
		"socket at which systemd finds the provider by the file's name")
	f.StringVar(&o.Node, "node", "", "node to mount on (default this host, or the only node)")
	f.DurationVar(&o.Grace, "grace", program.StorageGrace,
		"how long a volume stays mounted that was acquired and that nobody has mounted")
	return c
}

func (s *shell) storageProvider(ctx context.Context, o program.StorageOptions) error {
	client, _, err := s.client()
	if err != nil {
		return err
	}
	if o.Node, err = door.Node(ctx, client, o.Node); err != nil {
		return err
	}
	if o, err = s.storageOptions(o); err != nil {
		return err
	}
	o.Log = s.log()
	return s.programs.StorageProvider(ctx, o)
}

// storageOptions adds what the flags of all commands say: who serves the claims of which namespace.
func (s *shell) storageOptions(o program.StorageOptions) (program.StorageOptions, error) {
	client, ns, err := s.client()
	if err != nil {
		return o, err
	}
	if o.Config, err = s.config(); err != nil {
		return o, err
	}
	o.Namespace, o.Grace, o.Version = ns, cmp.Or(o.Grace, program.StorageGrace), s.version
	o.Why = func(ctx context.Context, ns, pod string) string { return s.answer(ctx, client, ns, pod) }
	return o, nil
}
