package driverfile

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Version and kind of a Driver.
const (
	APIVersion = "volplane.dev/v1"
	Kind       = "Driver"
)

// Variables that every process has in its environment, and that Process.Exec may refer to.
const (
	// VarEndpoint is the variable with the address of the socket, as unix:///run/x/csi.sock.
	VarEndpoint = "CSI_ENDPOINT"
	// VarNode is the variable with the name of the node.
	VarNode = "NODE_NAME"
)

// Variables that a process with a service account has in its environment: where programs that run in a Pod find the API
// server.
const (
	VarServiceHost = "KUBERNETES_SERVICE_HOST"
	VarServicePort = "KUBERNETES_SERVICE_PORT"
)

// Role is a service of a driver that a process has at its socket.
type Role string

// The roles of a driver. Each of them belongs to exactly one process.
const (
	RoleController Role = "controller"
	RoleNode       Role = "node"
)

// Driver is the content of one file: a CSI driver that this host runs.
type Driver struct {
	// APIVersion and Kind are the constants of these names.
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Name is the driver's CSI name, and that of the file.
	Name string `json:"name"`
	// Processes are the one or two processes of the driver.
	Processes []Process `json:"processes"`
	// NodeLocal says that each host has an instance with disks of its own, so that the controllers of a host call its
	// own: the CSIDriver that is made for the driver says so.
	NodeLocal bool `json:"nodeLocal,omitempty"`
	// Class is the StorageClass that was made together with the driver; it may be empty.
	Class string `json:"class,omitempty"`
	// RestartedAt is a time in RFC 3339. When it changes, the processes are started again.
	RestartedAt string `json:"restartedAt,omitempty"`
}

// Process is one process of a driver, with one socket.
type Process struct {
	// Roles are the services at the socket. A driver without a controller service may have the role
	// of the controller too: it says so when it is asked.
	Roles []Role `json:"roles"`
	// Exec is the program, an absolute path, and its arguments. In each, $(NAME) stands for a variable of the process's
	// environment, as in Kubernetes. If it is empty, volplane does not run the process.
	Exec []string `json:"exec,omitempty"`
	// Env are variables of the environment, beside VarEndpoint and VarNode, for which $(CSI_ENDPOINT) and
	// $(NODE_NAME) stand in the values.
	Env map[string]string `json:"env,omitempty"`
	// EnvFromSecret are variables whose values are in Secrets of the API.
	EnvFromSecret []SecretVariable `json:"envFromSecret,omitempty"`
	// ServiceAccount is NAMESPACE/NAME of the account as which the program finds the API server, as a program in a Pod
	// does; empty if it finds none.
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// WorkingDir is the directory in which the program is started; empty stands for /.
	WorkingDir string `json:"workingDir,omitempty"`
	// Socket is the path of the socket; see Driver.Socket for the default.
	Socket string `json:"socket,omitempty"`
}

// SecretVariable is a variable whose value is in a Secret.
type SecretVariable struct {
	// Name is the name of the variable.
	Name string `json:"name"`
	// Secret is NAMESPACE/NAME of the Secret.
	Secret string `json:"secret"`
	// Key is the key of the value in the Secret.
	Key string `json:"key"`
	// Optional says that the program is started without the variable while the value does not exist.
	Optional bool `json:"optional,omitempty"`
}

// Has says whether the process has a role.
func (p Process) Has(r Role) bool { return slices.Contains(p.Roles, r) }

// ProcessName returns the name of a process of this driver: the driver's own name for the only
// process, else the name with "-node" or "-controller".
func (d Driver) ProcessName(p Process) string {
	if len(p.Roles) != 1 {
		return d.Name
	}
	return d.Name + "-" + string(p.Roles[0])
}

// ProgramsOf returns the names that the processes of a driver may have, whatever its file says.
func ProgramsOf(driver string) []string {
	return []string{driver, driver + "-" + string(RoleNode), driver + "-" + string(RoleController)}
}

// Programs returns the names of the processes of a kind that files describe, or may describe: wanted and broken are
// what Dir.Read returns.
func Programs(wanted []Driver, broken map[string]error, is func(Process) bool) map[string]bool {
	out := map[string]bool{}
	for path := range broken {
		for _, name := range ProgramsOf(NameOf(path)) {
			out[name] = true
		}
	}
	for _, d := range wanted {
		for _, p := range d.Processes {
			if is(p) {
				out[d.ProcessName(p)] = true
			}
		}
	}
	return out
}

// Socket returns the path of the socket of a process of this driver. A process without a path of its
// own has its socket in the driver's directory below plugins, the node agent's directory of drivers.
func (d Driver) Socket(p Process, plugins string) string {
	switch {
	case p.Socket != "":
		return p.Socket
	case p.Has(RoleNode):
		return filepath.Join(plugins, d.Name, "csi.sock")
	}
	return filepath.Join(plugins, d.Name, "controller.sock")
}

// Expand returns a text in which $(NAME) is replaced by the variable of that name, as Kubernetes
// does in the command of a container: $$ stands for $, so that $$(NAME) is the text $(NAME), and a
// reference to an unknown variable stays. Values are not expanded again.
func Expand(text string, vars map[string]string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, after, closed := strings.Cut(rest, ")")
		value, known := vars[strings.TrimPrefix(name, "(")]
		switch {
		case strings.HasPrefix(rest, "$"):
			text = rest[1:]
			out.WriteByte('$')
		case closed && known && strings.HasPrefix(rest, "("):
			text = after
			out.WriteString(value)
		case closed && strings.HasPrefix(rest, "("):
			text = after
			out.WriteString("$" + name + ")")
		default:
			text = rest
			out.WriteByte('$')
		}
	}
}

// Start returns the command line and the environment, as K=V in the order of the names, with which a process is
// started. host are the variables that the host sets, VarEndpoint and VarNode among them, and secrets has the values of
// EnvFromSecret by the names of the variables.
func (p Process) Start(host, secrets map[string]string) (argv, env []string) {
	all := map[string]string{}
	maps.Copy(all, host)
	maps.Copy(all, secrets)
	for name, value := range p.Env {
		all[name] = Expand(value, host)
	}
	for _, arg := range p.Exec {
		argv = append(argv, Expand(arg, all))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return argv, env
}
