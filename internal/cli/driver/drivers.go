package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi/trace"
	"volplane.dev/volplane/internal/driverfile"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/noderoot"
	"volplane.dev/volplane/internal/program"
)

// driversOf are the CSI drivers that this host runs, as its files, its supervisor and the API
// know them.
type hostDrivers struct {
	files driverfile.Dir
	// state is the supervisor's directory of records and logs.
	state string
	// plugins is the node agent's directory of drivers' sockets.
	plugins string
	// traced is the process that calls the drivers.
	traced trace.Client
	// client and node are set by reach.
	client kubernetes.Interface
	node   string
	// absent is why the API cannot be reached; nil if it can.
	absent   error
	out, err io.Writer
}

// hostFlags are the flags of all verbs about the drivers of this host.
type hostFlags struct{ dir, node, root string }

func (f *hostFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.dir, "drivers-dir", "", "directory of the drivers' files (default <data-dir>/drivers.d)")
	c.Flags().StringVar(&f.root, "root-dir", "", "root directory of the node agent (default the control plane's, or "+
		"<data-dir>/node)")
	_ = c.MarkFlagDirname("drivers-dir")
	_ = c.MarkFlagDirname("root-dir")
}

// registerNode adds the flag of verbs that read from the API about this host.
func (f *hostFlags) registerNode(c *cobra.Command) {
	c.Flags().StringVar(&f.node, "node", "", "name of this host's node (default the host's name, or the only node)")
}

func driversOf(s *shell.Shell, f hostFlags) (*hostDrivers, error) {
	dir, err := s.Path(f.dir, "drivers.d")
	if err != nil {
		return nil, err
	}
	root, err := s.RootDir(f.root)
	if err != nil {
		return nil, err
	}
	return &hostDrivers{
		files: driverfile.Dir(dir), state: filepath.Join(root, "drivers"), plugins: filepath.Join(root, "plugins"),
		traced: trace.Client{Socket: trace.Socket(root)},
		out:    s.Out, err: s.Err,
	}, nil
}

// reach finds the API and this host's node. If no API server is configured or answers, absent says so;
// any other failure is an error.
func (h *hostDrivers) reach(ctx context.Context, s *shell.Shell, node string) error {
	client, _, err := s.Client()
	if err == nil {
		h.client = client
		h.node, err = s.NodeOf(ctx, client, node)
	}
	var dial *net.OpError
	if errors.Is(err, shell.ErrNoServer) || errors.As(err, &dial) && dial.Op == "dial" {
		h.client, h.absent = nil, errors.New(s.Explain(err))
		return nil
	}
	return err
}

// nodeSource reads and watches the CSINode of this host.
func (h *hostDrivers) nodeSource() kube.Source[*storagev1.CSINode] {
	nodes := h.client.StorageV1().CSINodes()
	return kube.Source[*storagev1.CSINode]{Get: nodes.Get, Watch: nodes.Watch}
}

// registers says whether a driver is registered on a node.
func registers(n *storagev1.CSINode, driver string) bool {
	is := func(d storagev1.CSINodeDriver) bool { return d.Name == driver }
	return n != nil && slices.ContainsFunc(n.Spec.Drivers, is)
}

const (
	// lookAgain is how long changes of a directory may go unnoticed, if the kernel does not report them.
	lookAgain = 10 * time.Second
	// lookOften is the same if the kernel cannot report them, because the host has no inotify instance left.
	lookOften = time.Second
)

// onChange calls look now and whenever something in a directory changes, until look returns true or an
// error, or ctx ends.
func onChange(ctx context.Context, dir string, look func() (bool, error)) error {
	// The directory is the supervisor's, which may not have started yet.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("watch directory: %w", err)
	}
	w, pause := &fsnotify.Watcher{}, lookOften
	if watcher, err := fsnotify.NewWatcher(); err == nil {
		defer watcher.Close()
		if watcher.Add(dir) == nil {
			w, pause = watcher, lookAgain
		}
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.Events:
		case err := <-w.Errors:
			// After an overflow, the next look finds all changes.
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watch %s: %w", dir, err)
			}
		case <-tick.C:
		}
	}
}

// completeHosted offers the drivers of this host as the first argument.
func completeHosted(s *shell.Shell) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		const directive = cobra.ShellCompDirectiveNoFileComp
		if len(args) > 0 {
			return nil, directive
		}
		dir, _ := c.Flags().GetString("drivers-dir")
		h, err := driversOf(s, hostFlags{dir: dir})
		if err != nil {
			return nil, directive
		}
		return h.names(), directive
	}
}

// names returns the names of all drivers that have a file, whether or not it can be used.
func (h *hostDrivers) names() []string {
	all, broken := h.files.Read()
	var out []string
	for _, d := range all {
		out = append(out, d.Name)
	}
	for path := range broken {
		if name := driverfile.NameOf(path); name != "" && path != string(h.files) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func Command(s *shell.Shell) *cobra.Command {
	var id, root, pool string
	local := &cobra.Command{
		Use:   "local",
		Short: "Run the bundled driver, which stores volumes in files",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := s.RootDir(root)
			if err != nil {
				return err
			}
			pool, err := s.Path(pool, "pool")
			if err != nil {
				return err
			}
			id = cmp.Or(id, noderoot.NameOf(root), program.HostName())
			o := program.DriverOptions{NodeID: id, RootDir: root, PoolDir: pool, Log: s.Log()}
			return s.Programs.LocalDriver(cmd.Context(), o)
		},
	}
	f := local.Flags()
	f.StringVar(&id, "node-id", "", "name of the node (default that of the agent at --root-dir, else the host's)")
	f.StringVar(&root, "root-dir", "", "root directory of the node agent, or the kubelet's (default <data-dir>/node)")
	f.StringVar(&pool, "pool", "", "directory for the volumes (default <data-dir>/pool)")
	c := &cobra.Command{
		Use:   "driver",
		Short: "Run and test CSI drivers on this host, and see what becomes of them",
		Long: `Run CSI drivers on this host, and see what becomes of them. Each driver has a
file in <data-dir>/drivers.d, which these commands write, or which you write
yourself.`,
		Args: shell.Subcommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(local, addCommand(s), importCommand(s), listCommand(s), logsCommand(s),
		restartCommand(s), removeCommand(s), delegateCommand(s), doctorCommand(s),
		initCommand(s), traceCommand(s), faultsCommand(s), callCommand(s),
		recordCommand(s), replayCommand(s))
	return c
}
