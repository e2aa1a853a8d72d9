package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-base/cli/flag"

	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/process/revision"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/standalone/up"
)

func root() *cobra.Command {
	c := &cobra.Command{
		Use: "volplaned",
		Short: "Standalone storage control plane: API server, controllers, node agent and local driver in " +
			"one process",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	c.AddCommand(upCommand(), inviteCommand(), revokeCommand(), backupCommand(), restoreCommand(), checkCommand(),
		migrateStoreCommand(), versionCommand())
	return c
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "volplaned", revision.With(version))
			return err
		},
	}
}

func upCommand() *cobra.Command {
	var o up.Options
	var verbosity int
	var format string
	c := &cobra.Command{
		Use:   "up",
		Short: "Start the control plane in the foreground",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out, o.Version = cmd.OutOrStdout(), version
			if err := sidecar.CheckLogFormat(format); err != nil {
				return err
			}
			ending := func() bool { return cmd.Context().Err() != nil }
			o.Log = options.NewLog(cmd.ErrOrStderr(), format, verbosity, ending)
			slog.SetDefault(o.Log)
			return up.Run(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.DataDir, "data-dir", options.DataDir(),
		"directory for all persistent data; set $VOLPLANE_DATA_DIR to change the default")
	f.StringVar(&o.RootDir, "root-dir", "",
		"directory for the node agent's sockets, journal and mounts, such as /var/lib/kubelet for drivers that know no "+
			"other (default that of the last start, or node in the data directory)")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:6771", "address of the API server; port 0 chooses a free port")
	f.StringSliceVar(&o.Names, "tls-san", nil, "additional host names or addresses by which nodes reach this host")
	f.StringVar(&o.Node, "name", "", "name of this host's node (default that of the last start, or the host's name)")
	f.StringVar(&o.PluginDir, "volume-plugin-dir", "",
		"directory of FlexVolume drivers (default volumeplugins in the data directory)")
	f.StringVar(&o.FlexConfig, "flex-config", "", "configuration file with the FlexVolume drivers that Pods may use")
	f.BoolVar(&o.DisableForceDetachOnTimeout, "disable-force-detach-on-timeout", false,
		"do not detach volumes by force after a node has not been ready for six minutes; the taint "+
			corev1.TaintNodeOutOfService+" still detaches them")
	f.DurationVar(&o.Backups.Every, "backup-every", 24*time.Hour,
		"interval of the automatic backups in the data directory; 0 disables them")
	f.IntVar(&o.Backups.Keep, "backup-keep", 7, "number of automatic backups to keep")
	f.StringVar(&o.EncryptionConfig, "encryption-provider-config", "",
		"path of the EncryptionConfiguration for Secrets, as for kube-apiserver (default a generated key in the data "+
			"directory)")
	f.BoolVar(&o.ForgetUnreadable, "forget-unreadable-secrets", false,
		"delete the Secrets whose key is lost; use it for one start only")
	f.StringVar(&o.Docker.Socket, "docker", "", "serve claims to docker and podman at this socket (--docker alone: "+
		options.DockerSocket+"; default the socket of systemd's volplane-docker.socket, if there is one)")
	f.Lookup("docker").NoOptDefVal = options.DockerSocket
	f.StringVar(&o.Docker.Namespace, "docker-namespace", "default", "namespace of the claims that docker's volumes are")
	f.StringVar(&o.Page, "page", "127.0.0.1:0", "loopback address at which 'volplane page' lets a browser look, from the "+
		"first time that it is requested; port 0 chooses a free port, and an empty address turns the page off")
	f.StringVar(&o.Storage.Socket, "storage-provider", "", "serve claims to systemd at this socket "+
		"(--storage-provider alone: "+options.StorageSocket+"; default the socket of systemd's "+
		"volplane-storage.socket, if there is one)")
	f.Lookup("storage-provider").NoOptDefVal = options.StorageSocket
	f.StringVar(&o.Storage.Namespace, "storage-namespace", "default",
		"namespace of the claims that the volumes of systemd's storage provider are")
	f.DurationVar(&o.StatsEvery, "volume-stats-agg-period", time.Minute, options.StatsUsage)
	storeFlags(c, &o.Store)
	f.StringVar(&o.Join, "join", "", "output of 'volplane invite --control-plane NAME', by which this host becomes "+
		"another control plane of the objects in --etcd-servers; it may stay when the host has joined")
	f.Var(flag.NewMapStringBool(&o.FeatureGates), "feature-gates",
		"feature gates of the API server, as name=true or name=false: those of Kubernetes, with its defaults")
	f.IntVarP(&verbosity, "verbosity", "v", 0, sidecar.VerbosityUsage)
	f.StringVar(&format, "logging-format", "text", sidecar.LogFormatUsage)
	return c
}

// planeLife is how long an invitation of a control plane is valid by default.
const planeLife = 10 * time.Minute

func inviteCommand() *cobra.Command {
	var dir, server string
	var life time.Duration
	var plane bool
	c := &cobra.Command{
		Use:   "invite NAME",
		Short: "Print an invitation for a node agent, or for another control plane",
		Long: `Print a kubeconfig with which the node agent of that name can join, once and
within an hour (--ttl). The agent creates a key and gets a certificate, which it
renews from then on. Keep the file secret until the agent has joined (umask 077).
The control plane must be running.

With --control-plane it is for another control plane of the same objects, which
must be in an etcd that others run: 'volplane up --join FILE --etcd-servers=...' on
that host fetches all keys with it, once and within ten minutes (--ttl, at most an
hour). Until then the file is worth as much as the data directory. 'volplane node
revoke NAME' makes an invitation of either kind worthless.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			invite := up.Invite
			if plane {
				invite = up.InviteControlPlane
			}
			if plane && !cmd.Flags().Changed("ttl") {
				life = planeLife
			}
			config, err := invite(cmd.Context(), dir, args[0], server, life)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(config)
			return err
		},
	}
	c.Flags().StringVar(&dir, "data-dir", options.DataDir(), dataDirUsage)
	c.Flags().StringVar(&server, "server", "",
		"HOST or HOST:PORT by which the other host reaches this control plane (default the address used on this host)")
	c.Flags().BoolVar(&plane, "control-plane", false, "invite another control plane of the same objects instead of a node")
	c.Flags().DurationVar(&life, "ttl", time.Hour, "lifetime of the invitation (of a control plane, 10m by default)")
	return c
}

// printRevoked prints what a revocation has done, and what it has not.
func printRevoked(cmd *cobra.Command, name string, r up.Revoked) error {
	switch {
	case r.Used:
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: a host has used the invitation of control plane %s, and has all keys, "+
			"which no revocation takes away: SECURITY.md says what to do if it is not yours\n", name)
	case !r.Known && !r.ControlPlane:
		fmt.Fprintf(cmd.ErrOrStderr(), "note: Node %s does not exist: compare the name with 'volplane get nodes'\n", name)
	}
	if r.ControlPlane {
		fmt.Fprintf(cmd.OutOrStdout(), "the invitation of control plane %s is revoked\n", name)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(),
		"all identities of node %s are revoked; to admit it again, run 'volplane invite %s'\n", name, name)
	return err
}

func revokeCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "revoke NODE",
		Short: "Revoke a node's certificates and invitations",
		Long: `Revoke every certificate and invitation of a node: the API server refuses them
from now on, and ends the node's requests in flight. The Node object and the
mounts of the host stay. To admit the node again, invite it. The control plane
must be running.

An invitation of a control plane is revoked by its name, too. A control plane that
has joined cannot be revoked, because it has the key of the authority: withdraw its
certificate for etcd, and replace the authority (SECURITY.md).`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := up.Revoke(cmd.Context(), dir, args[0])
			if err != nil {
				return err
			}
			return printRevoked(cmd, args[0], r)
		},
	}
	c.Flags().StringVar(&dir, "data-dir", options.DataDir(), dataDirUsage)
	return c
}
