package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/hosting/driverfile"
)

// addFlags are the flags of 'driver add'.
type addFlags struct {
	hostFlags
	// node is the process with the node service, which has the controller service too unless controller says something.
	plugin, controller processFlags
	workingDir         string
	class              classFlags
	nodeLocal          nodeLocalFlag
	replace            bool
	wait               time.Duration
}

// processFlags describe one process of a driver.
type processFlags struct {
	exec, socket, account string
	env, secrets          []string
}

func addCommand(s *shell.Shell) *cobra.Command {
	var f addFlags
	c := &cobra.Command{
		Use:   "add NAME",
		Short: "Run a CSI driver on this host",
		Long: `Run a CSI driver on this host: write its file, and wait until the driver is
registered. NAME is the name that the driver gives itself. The control plane or
node agent of this host starts the driver's programs, restarts them when they
end, and leaves them running when it ends itself.

The command is split into words as a shell does it, but no shell is run and
nothing is expanded. A program without a slash is looked up in PATH. The driver
gets CSI_ENDPOINT, the address of its socket, and NODE_NAME in its environment,
and $(CSI_ENDPOINT) and $(NODE_NAME) stand for them in the command.

With --exec alone, one process has all services of the driver. With
--controller-exec or --controller-socket, another process has its controller
service. With --socket instead of --exec, another program runs the process.

With --service-account, the program finds the API server as it would in a Pod:
by its environment and the files of the account, whose rights it has.
With --node-local, each host that has the driver has disks of its own: a volume
is made and served on the host for whose Pod it is made.

If the driver has no CSIDriver, one is made from what the driver says of itself;
--class makes a StorageClass, too. The command may be repeated. To change a
driver, use --replace: its processes are restarted, and mounts stay.`,
		Example: `  volplane driver add hostpath.csi.k8s.io --class hostpath \
      --exec 'hostpathplugin --endpoint=$(CSI_ENDPOINT) --nodeid=$(NODE_NAME) --statedir=/srv/hp'
  volplane driver add csi.example.com --exec 'plugin --mode node' --controller-exec 'plugin --mode controller' \
      --env-from-secret TOKEN=storage/cloud/token
  volplane driver add csi.example.com --socket /run/example/csi.sock`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeHosted(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.nodeLocal.said = cmd.Flags().Changed("node-local")
			return add(cmd.Context(), s, f, args[0])
		},
	}
	f.register(c)
	return c
}

func (f *addFlags) register(c *cobra.Command) {
	f.hostFlags.register(c)
	f.registerNode(c)
	p := c.Flags()
	p.StringVar(&f.plugin.exec, "exec", "", "command that serves the driver")
	p.StringVar(&f.controller.exec, "controller-exec", "", "command that serves its controller service, if it is another")
	p.StringVar(&f.plugin.socket, "socket", "", "path of the driver's socket (default one below <data-dir>/node/plugins)")
	p.StringVar(&f.controller.socket, "controller-socket", "", "path of the socket of the controller's process")
	p.StringArrayVar(&f.plugin.env, "env", nil, "variable of the driver's environment, as K=V; may be repeated")
	p.StringArrayVar(&f.controller.env, "controller-env", nil, "variable of the controller's process")
	p.StringArrayVar(&f.plugin.secrets, "env-from-secret", nil,
		"variable with a value of a Secret, as K=NAMESPACE/NAME/KEY; may be repeated")
	p.StringArrayVar(&f.controller.secrets, "controller-env-from-secret", nil, "the same for the controller's process")
	p.StringVar(&f.plugin.account, "service-account", "",
		"service account as which the driver finds the API server as in a Pod, as NAMESPACE/NAME")
	p.StringVar(&f.controller.account, "controller-service-account", "", "the same for the controller's process")
	p.StringVar(&f.workingDir, "working-dir", "", "directory in which the commands are started (default /)")
	p.StringVar(&f.class.name, "class", "", "name of a StorageClass to create for the driver")
	p.StringArrayVar(&f.class.parameters, "parameter", nil, "parameter of the class, as K=V; may be repeated")
	p.BoolVar(&f.class.isDefault, "default", false, "make the class the default; of several, the newest is used")
	p.BoolVar(&f.nodeLocal.is, "node-local", false, "each host that has the driver has disks of its own")
	p.BoolVar(&f.replace, "replace", false, "change the driver if it exists and is different")
	p.DurationVar(&f.wait, "wait", time.Minute, "how long to wait until the driver is registered; 0 not to wait")
	for _, name := range []string{"exec", "controller-exec", "socket", "controller-socket"} {
		_ = c.MarkFlagFilename(name)
	}
	_ = c.MarkFlagDirname("working-dir")
}

// driver returns the driver that the flags describe.
func (f *addFlags) driver(name string) (driverfile.Driver, error) {
	d := driverfile.Driver{
		APIVersion: driverfile.APIVersion, Kind: driverfile.Kind, Name: name, Class: f.class.name,
		NodeLocal: f.nodeLocal.is,
	}
	if f.plugin.exec == "" && f.plugin.socket == "" {
		return d, errors.New("it is not known how to reach the driver: use --exec to start it, or --socket if another " +
			"program does")
	}
	if err := f.class.check(f.wait); err != nil {
		return d, err
	}
	main, err := f.process(f.plugin, "")
	if err != nil {
		return d, err
	}
	main.Roles = []driverfile.Role{driverfile.RoleController, driverfile.RoleNode}
	d.Processes = []driverfile.Process{main}
	if f.controller.exec != "" || f.controller.socket != "" {
		controller, err := f.process(f.controller, "controller-")
		if err != nil {
			return d, err
		}
		d.Processes[0].Roles, controller.Roles = main.Roles[1:], main.Roles[:1:1]
		d.Processes = append(d.Processes, controller)
	} else if len(f.controller.env) > 0 || len(f.controller.secrets) > 0 || f.controller.account != "" {
		return d, errors.New("--controller-env, --controller-env-from-secret and --controller-service-account are for the " +
			"process of --controller-exec: use --env, --env-from-secret and --service-account")
	}
	return d, driverfile.Check(d)
}

// process returns a process of the driver; prefix is that of its flags.
func (f *addFlags) process(one processFlags, prefix string) (driverfile.Process, error) {
	p := driverfile.Process{Socket: one.socket, ServiceAccount: one.account}
	var err error
	if len(one.env) > 0 {
		p.Env, err = shell.Pairs("--"+prefix+"env", one.env, shell.AsIs)
	}
	if err != nil {
		return p, err
	}
	if p.EnvFromSecret, err = secretVariables("--"+prefix+"env-from-secret", one.secrets); err != nil {
		return p, err
	}
	if one.exec == "" {
		return p, nil
	}
	p.WorkingDir = f.workingDir
	p.Exec, err = driverfile.Words(one.exec)
	if err == nil {
		err = programOf(p.Exec)
	}
	if err != nil {
		return p, fmt.Errorf("--%sexec: %w", prefix, err)
	}
	return p, nil
}

func secretVariables(flag string, all []string) ([]driverfile.SecretVariable, error) {
	var out []driverfile.SecretVariable
	for _, one := range all {
		name, ref, _ := strings.Cut(one, "=")
		parts := strings.Split(ref, "/")
		const words = 3 // namespace, name, key
		if len(parts) != words {
			return nil, fmt.Errorf("%s %.80q: want VARIABLE=NAMESPACE/NAME/KEY", flag, name)
		}
		out = append(out, driverfile.SecretVariable{Name: name, Secret: parts[0] + "/" + parts[1], Key: parts[2]})
	}
	return out, nil
}

// Deeds of adding a driver.
const (
	deedCreated    = "created"
	deedConfigured = "configured"
	deedUnchanged  = "unchanged"
)

// errOther refuses to change a driver by the way.
var errOther = errors.New("it already exists and is different: use --replace to change it, or 'volplane driver " +
	"remove' to remove it first")

// planAdd says what adding a driver does to the one of the same name, and what is written. What add does not say stays:
// the time of the last restart, without --class the class, and unless nodeLocalSaid, whether it is node-local.
func planAdd(
	before *driverfile.Driver, d driverfile.Driver, replace, nodeLocalSaid bool,
) (string, driverfile.Driver, error) {
	if before == nil {
		return deedCreated, d, nil
	}
	d.RestartedAt = before.RestartedAt
	d.Class = cmp.Or(d.Class, before.Class)
	if !nodeLocalSaid {
		d.NodeLocal = before.NodeLocal
	}
	// A class is made, and a driver said to be node-local, beside its processes, which stay as they are.
	same := *before
	if before.Class == "" {
		same.Class = d.Class
	}
	same.NodeLocal = before.NodeLocal || d.NodeLocal
	switch {
	case reflect.DeepEqual(*before, d):
		return deedUnchanged, d, nil
	case replace, reflect.DeepEqual(same, d):
		return deedConfigured, d, nil
	}
	return "", d, errOther
}

func add(ctx context.Context, s *shell.Shell, f addFlags, name string) error {
	d, err := f.driver(name)
	if err != nil {
		return fmt.Errorf("driver %s: %w", name, err)
	}
	h, err := driversOf(s, f.hostFlags)
	if err != nil {
		return err
	}
	if f.wait > 0 {
		if err := h.reach(ctx, s, f.node); err != nil {
			return err
		}
	}
	return h.add(ctx, d, f)
}

// add writes the driver's file, and does the rest where the API can be reached.
func (h *hostDrivers) add(ctx context.Context, d driverfile.Driver, f addFlags) error {
	var before *driverfile.Driver
	old, err := h.files.Get(d.Name)
	switch {
	case err == nil:
		before = &old
	case !errors.Is(err, fs.ErrNotExist) && !f.replace:
		return fmt.Errorf("%w\nCorrect the file, or use --replace to overwrite it", err)
	}
	deed, d, err := planAdd(before, d, f.replace, f.nodeLocal.said)
	if err != nil {
		return fmt.Errorf("driver %s: %w", d.Name, err)
	}
	wanted, err := h.prepareClass(ctx, d.Name, f.class)
	if err != nil {
		return err
	}
	if err := h.prepareNodeLocal(ctx, d); err != nil {
		return err
	}
	started := h.startsOf(d, changedProcesses(before, d, h.plugins))
	if deed != deedUnchanged {
		if err := h.files.Put(d); err != nil {
			return fmt.Errorf("driver %s: %w", d.Name, err)
		}
	}
	fmt.Fprintf(h.out, "driver/%s %s\n", d.Name, deed)
	switch {
	case f.wait <= 0:
		return nil
	case h.client == nil:
		fmt.Fprintf(h.err, "It will be started by the control plane or node agent of this host. Nothing more was done: %v\n",
			h.absent)
		return nil
	}
	if err := h.awaitDriver(ctx, d, started, f.wait); err != nil {
		return err
	}
	return h.ensureObjects(ctx, d, wanted)
}

// programOf replaces the program of a command by its absolute path.
func programOf(words []string) error {
	path, err := exec.LookPath(words[0])
	switch {
	case errors.Is(err, exec.ErrNotFound) && !strings.Contains(words[0], "/"):
		return fmt.Errorf("no program %s is in PATH: install it, or write its path", words[0])
	case err != nil:
		return fmt.Errorf("find the program: %w", err)
	}
	words[0], err = filepath.Abs(path)
	return err
}
