package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/trace"
	"volplane.dev/volplane/internal/hosting/driverfile"
)

// hostDrivers are the CSI drivers that this host runs, as its files, its supervisor and the API
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

// registers says whether a driver is registered on a node.
func registers(n *storagev1.CSINode, driver string) bool {
	is := func(d storagev1.CSINodeDriver) bool { return d.Name == driver }
	return n != nil && slices.ContainsFunc(n.Spec.Drivers, is)
}

const (
	// answerTime limits how long a driver may take to say what it is.
	answerTime = 5 * time.Second
	// connectTime limits how long a socket is tried.
	connectTime = time.Second
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

// get returns a driver that has a file, with an error that says what to do if it has none.
func (h *hostDrivers) get(name string) (driverfile.Driver, error) {
	d, err := h.files.Get(name)
	if errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("driver %s has no file in %s: see 'volplane driver list'", name, h.files)
	}
	return d, err
}

// driverInUse returns the driver of a name in a Node's volumesInUse.
func driverInUse(name corev1.UniqueVolumeName) string {
	rest, _ := strings.CutPrefix(string(name), "kubernetes.io/csi/")
	driver, _, _ := strings.Cut(rest, "^")
	return driver
}

// some returns the first names of a list.
func some(names []string) string {
	const most = 5
	names = slices.Sorted(slices.Values(names))
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}

// calledDriver returns the drivers of this host after a check of the name of one of them, which need not have a file.
func calledDriver(s *shell.Shell, f hostFlags, name string) (*hostDrivers, error) {
	if err := csi.CheckName(name); err != nil {
		return nil, err
	}
	return driversOf(s, f)
}

// completeCalled offers the drivers with a file or a socket as the first argument.
func completeCalled(s *shell.Shell) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		names, directive := completeHosted(s)(c, args, "")
		h, err := driversOf(s, hostFlags{})
		if len(args) > 0 || err != nil {
			return names, directive
		}
		found, _ := os.ReadDir(h.plugins) // without the directory, there are no others
		for _, e := range found {
			if _, err := os.Stat(h.usualSocket(e.Name())); err == nil {
				names = append(names, e.Name())
			}
		}
		slices.Sort(names)
		return slices.Compact(names), directive
	}
}

func (h *hostDrivers) usualSocket(driver string) string {
	return filepath.Join(h.plugins, driver, "csi.sock")
}

// socketOf returns the socket of a driver's process with a role.
func (h *hostDrivers) socketOf(name string, role driverfile.Role) (string, error) {
	d, err := h.files.Get(name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(h.usualSocket(name)); err == nil {
			return h.usualSocket(name), nil
		}
		return "", fmt.Errorf("driver %s has neither a file in %s nor a socket below %s: see 'volplane driver list', or "+
			"name its socket with --socket", name, h.files, h.plugins)
	}
	if err != nil {
		return "", err
	}
	for _, p := range d.Processes {
		if p.Has(role) {
			return d.Socket(p, h.plugins), nil
		}
	}
	return "", fmt.Errorf("driver %s has no process with the role %s", name, role)
}

func hostRoles() []driverfile.Role {
	return []driverfile.Role{driverfile.RoleNode, driverfile.RoleController}
}
