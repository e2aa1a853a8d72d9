package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"volplane.dev/volplane/standalone/up"
)

// defaultDataDir holds everything unless --data-dir says otherwise.
const defaultDataDir = "/var/lib/volplane"

func root() *cobra.Command {
	c := &cobra.Command{
		Use: "volplaned",
		Short: "The standalone storage control plane: API server, controllers, node agent and local driver in " +
			"one process",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	c.AddCommand(upCommand(), inviteCommand(), revokeCommand(), backupCommand(), restoreCommand(), checkCommand())
	return c
}

func upCommand() *cobra.Command {
	var o up.Options
	var verbosity int
	c := &cobra.Command{
		Use:   "up",
		Short: "Start the control plane in the foreground",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out, o.Version = cmd.OutOrStdout(), version
			o.Log = newLog(cmd.Context(), cmd.ErrOrStderr(), verbosity)
			return up.Run(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.DataDir, "data-dir", dataDir(),
		"directory that holds everything that lasts (default from $VOLPLANE_DATA_DIR)")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:6771", "address of the API server; port 0 takes a free one")
	f.StringSliceVar(&o.Names, "tls-san", nil, "further names or addresses by which joining nodes reach this host")
	f.StringVar(&o.Node, "name", hostName(), "name of this host's node")
	f.StringVar(&o.PluginDir, "volume-plugin-dir", "",
		"directory of FlexVolume drivers (default volumeplugins in the data directory)")
	f.StringVar(&o.FlexConfig, "flex-config", "", "file that says which FlexVolume drivers Pods may use, and how")
	f.BoolVar(&o.DisableForceDetachOnTimeout, "disable-force-detach-on-timeout", false,
		"never detach a volume by force only because its node has not been ready for six minutes; the taint "+
			corev1.TaintNodeOutOfService+" still does")
	f.DurationVar(&o.Backups.Every, "backup-every", 24*time.Hour,
		"pause between the backups that are made by themselves in the data directory; 0 makes none")
	f.IntVar(&o.Backups.Keep, "backup-keep", 7, "how many of them are kept")
	f.StringVar(&o.EncryptionConfig, "encryption-provider-config", "",
		"EncryptionConfiguration that says how Secrets are encrypted in the data directory, as for kube-apiserver (default "+
			"a key made there)")
	f.BoolVar(&o.ForgetUnreadable, "forget-unreadable-secrets", false,
		"delete the Secrets whose key is gone for good; give it for one start only")
	f.IntVarP(&verbosity, "verbosity", "v", 0, "how much to log: 0 warnings and changes, 4 everything")
	return c
}

func inviteCommand() *cobra.Command {
	var dir, server string
	var life time.Duration
	c := &cobra.Command{
		Use:   "invite NODE",
		Short: "Print a kubeconfig with which the node agent of that name may join",
		Long: `Print a kubeconfig with which the node agent of that name may join, once and within
an hour (--ttl): the node makes a key and gets a certificate, which it renews from
then on. Until then keep it from others (umask 077). The control plane must run.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := up.Invite(cmd.Context(), dir, args[0], server, life)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(config)
			return err
		},
	}
	c.Flags().StringVar(&dir, "data-dir", dataDir(), dataDirUsage)
	c.Flags().StringVar(&server, "server", "",
		"HOST or HOST:PORT by which the node reaches this control plane (default the way from this host)")
	c.Flags().DurationVar(&life, "ttl", time.Hour, "how long the node may take to join")
	return c
}

func revokeCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "revoke NODE",
		Short: "Take back a node's certificates and invitations",
		Long: `Take back every certificate and invitation of a node: nothing that it shows counts
from now on, and what it has under way ends. Its Node and what is mounted there
stay. A new invitation lets it in again. The control plane must run.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := up.Revoke(cmd.Context(), dir, args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(),
				"node %s has no identity any more; 'volplane invite %s' gives it a new one\n", args[0], args[0])
			return err
		},
	}
	c.Flags().StringVar(&dir, "data-dir", dataDir(), dataDirUsage)
	return c
}

func dataDir() string {
	if d := os.Getenv("VOLPLANE_DATA_DIR"); d != "" {
		return d
	}
	return defaultDataDir
}

// hostName returns the host's name as a Node name.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return strings.ToLower(name)
}

// newLog returns the process's log and makes the libraries use it too: they
// only speak up about errors unless asked for more.
func newLog(ctx context.Context, w io.Writer, verbosity int) *slog.Logger {
	level, libraries := slog.LevelInfo, slog.LevelError
	if verbosity > 0 {
		level, libraries = slog.LevelDebug, slog.Level(-verbosity)
	}
	handler := func(l slog.Level) slog.Handler { return slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}) }
	theirs := handler(libraries)
	if verbosity == 0 {
		theirs = calm{theirs, ctx}
	}
	klog.SetLogger(logr.FromSlogHandler(theirs))
	log := slog.New(handler(level))
	slog.SetDefault(log)
	return log
}
