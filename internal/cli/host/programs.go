package host

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
)

// planeCommands are the verbs of volplaned that this program has, too.
func planeCommands(s *shell.Shell) []*cobra.Command {
	return []*cobra.Command{
		passCommand(s, "up", "Start the control plane on this host (runs volplaned)",
			`Start the control plane on this host, in the foreground: API server,
controllers, node agent and the bundled driver. All flags are those of
'volplaned up'; see 'volplane up --help'.`),
		passCommand(s, "invite NAME", "Print an invitation for a node agent or a control plane (runs volplaned)",
			`Print a kubeconfig with which the node agent of that name can join, once and
within an hour (--ttl); with --control-plane, one with which another control plane
of the same objects gets all keys, within ten minutes. All flags are those of
'volplaned invite'.`),
		passCommand(s, "backup [FILE]", "Save the objects and keys of the control plane to a file (runs volplaned)",
			`Save the objects and keys of the control plane on this host to a file, whether
it is running or not. All flags are those of 'volplaned backup'.`),
		passCommand(s, "restore FILE", "Restore an empty or damaged data directory from a backup (runs volplaned)",
			`Restore an empty or damaged data directory of this host's control plane from a
backup. Afterwards nothing is unmounted, detached or deleted until you run
'volplane restore --accept'. All flags are those of 'volplaned restore'.`),
		passCommand(s, "check [FILE]", "Verify a backup, or the data of the control plane (runs volplaned)",
			`Verify a backup or, without FILE, the data of the control plane on this host.
All flags are those of 'volplaned check'.`),
		passCommand(s, "migrate-store --to external|embedded",
			"Move the objects of a stopped control plane to an etcd that others run, or back (runs volplaned)",
			`Move the objects of a control plane that does not run to an etcd that others run, or
from there to the data directory. All flags are those of 'volplaned migrate-store'.`),
	}
}

// passCommand returns a command that replaces this process by volplaned with the
// same verb and arguments.
func passCommand(s *shell.Shell, use, short, long string) *cobra.Command {
	verb, _, _ := strings.Cut(use, " ")
	return &cobra.Command{
		Use: use, Short: short, Long: long,
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			program, err := shell.FindStandalone()
			if err != nil && (slices.Contains(args, "--help") || slices.Contains(args, "-h")) {
				fmt.Fprintf(s.Err, "note: its flags are not listed, because %v\n", err)
				return c.Help()
			}
			if err != nil {
				return err
			}
			argv := append([]string{program, verb}, args...)
			if err := syscall.Exec(program, argv, os.Environ()); err != nil {
				return fmt.Errorf("run %s: %w", program, err)
			}
			return nil
		},
	}
}

type nodeFlags struct {
	join, root, name, pool, drivers, metrics, docker, storage string
	driver                                                    bool
	statsEvery                                                time.Duration
	bridge                                                    bridgeFlags
}

func nodeCommand(s *shell.Shell) *cobra.Command {
	var n nodeFlags
	c := &cobra.Command{
		Use:   "node --join FILE",
		Short: "Run the agent that mounts volumes on this host",
		Long: `Run the agent that mounts volumes on this host, together with the bundled
driver, until terminated. Mounts stay when the agent ends. FILE is the output of
'volplane invite NODE'; it contains the name of the node. The agent creates a
key, gets a certificate for it, and renews the certificate from then on.`,
		Args: shell.Subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return node(cmd.Context(), s, n) },
	}
	f := c.Flags()
	f.StringVar(&n.join, "join", "",
		"output of 'volplane invite NODE', or another kubeconfig with the identity of the node")
	f.StringVar(&n.root, "root-dir", "", "directory for the agent's sockets, journal and mounts (default <data-dir>/node)")
	f.StringVar(&n.name, "name", "", "name of the node (default the name in the identity)")
	f.StringVar(&n.pool, "pool", "", "directory for the bundled driver's volumes (default <data-dir>/pool)")
	f.StringVar(&n.drivers, "drivers-dir", "",
		"directory of the files of CSI drivers to run (default <data-dir>/drivers.d)")
	f.BoolVar(&n.driver, "driver", true, "run the bundled driver in the same process")
	f.DurationVar(&n.statsEvery, "volume-stats-agg-period", time.Minute, options.StatsUsage)
	f.StringVar(&n.metrics, "metrics-address", "",
		"address at which /metrics is served without authentication, such as 127.0.0.1:9810 (default none)")
	f.StringVar(&n.docker, "docker", "", "serve the claims of --namespace to docker and podman, as the user of "+
		"--kubeconfig, at this socket (--docker alone: "+options.DockerSocket+")")
	f.Lookup("docker").NoOptDefVal = options.DockerSocket
	f.StringVar(&n.storage, "storage-provider", "", "serve the claims of --namespace to systemd, as the user of "+
		"--kubeconfig, at this socket (--storage-provider alone: "+options.StorageSocket+")")
	f.Lookup("storage-provider").NoOptDefVal = options.StorageSocket
	n.bridge.register(c)
	_ = c.MarkFlagRequired("join")
	c.AddCommand(renameCommand())
	c.AddCommand(passCommand(s, "revoke NODE", "Revoke a node's certificates and invitations (runs volplaned)",
		`Revoke every certificate and invitation of a node: the API server refuses them
from now on. The Node object and the mounts of the host stay. To admit the node
again, invite it. All flags are those of 'volplaned revoke'.`))
	return c
}

// renameCommand refuses what people look for, and says what to do instead.
func renameCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rename OLD NEW",
		Short: "Say how a host gets a node of another name",
		Long: `A node cannot be renamed: volumes, attachments, Pods and the identity of the host
refer to it by its name. This command changes nothing, and says what to do.`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, names []string) error {
			return fmt.Errorf("node %[1]s cannot be renamed, because volumes, attachments and the identity of its "+
				"host name it: start the host with --name %[1]s, whatever it is called; or end its Pods, save what is on "+
				"its own disks, give it up with volplane delete node %[1]s --lost, and invite it as %[2]s", names[0], names[1])
		},
	}
}

func node(ctx context.Context, s *shell.Shell, n nodeFlags) error {
	root, err := s.Path(n.root, "node")
	if err != nil {
		return err
	}
	pool, err := s.Path(n.pool, "pool")
	if err != nil {
		return err
	}
	drivers, err := s.Path(n.drivers, "drivers.d")
	if err != nil {
		return err
	}
	log := s.Log()
	config, keep, err := identify(ctx, &n, root, log)
	if err != nil {
		return err
	}
	kept, stop := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() { keep(kept) })
	defer keeper.Wait()
	defer stop()
	agent := options.NodeOptions{
		Name: n.name, RootDir: root, DriversDir: drivers, Keep: []string{s.Flags.DataDir, pool, n.bridge.root},
		Config: config, StatsEvery: n.statsEvery, Log: log,
	}
	if n.metrics != "" {
		agent.Version = s.Version
		agent.HTTP = []sidecar.HTTPOptions{{Address: n.metrics, Flag: "--metrics-address"}}
	}
	if err := doors(s, n, &agent); err != nil {
		return err
	}
	var driver *options.DriverOptions
	if n.driver {
		driver = &options.DriverOptions{NodeID: n.name, RootDir: root, PoolDir: pool, Log: log}
	}
	return s.Programs.Node(ctx, agent, n.bridge.options(n.name, root, log), driver)
}

// doors adds those that the flags of a node request.
func doors(s *shell.Shell, n nodeFlags, agent *options.NodeOptions) error {
	for _, d := range []struct {
		flag, socket string
		grace        time.Duration
		to           **options.DoorOptions
	}{
		{"docker", n.docker, options.DockerGrace, &agent.Docker},
		{"storage-provider", n.storage, options.StorageGrace, &agent.Storage},
	} {
		if d.socket == "" {
			continue
		}
		o, err := doorOptions(s, options.DoorOptions{Socket: d.socket, Node: n.name, Grace: d.grace, Log: agent.Log})
		if err != nil {
			return fmt.Errorf("--%s: %w", d.flag, err)
		}
		*d.to = &o
	}
	return nil
}
