package manifest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The shapes that the controller part can have (S1-094, S1-095).
const (
	// Deployment is some Pods of which one leads; another goes on seconds after
	// its end, whatever became of its node.
	Deployment = "deployment"
	// StatefulSet is one Pod and no election. While its node is lost nobody
	// works, until somebody says that the Pod has ended.
	StatefulSet = "statefulset"
	// DaemonSet is no part of its own: everything is in one Pod on every node,
	// and one of them leads. Every node may then do what controllers do.
	DaemonSet = "daemonset"
)

// Shapes are all of them.
func Shapes() []string { return []string{Deployment, StatefulSet, DaemonSet} }

// maxBase leaves room in 63 characters, which a label has, for what Kubernetes
// appends to the name of a StatefulSet.
const maxBase = 40

// ErrOptions means that options cannot be meant.
var ErrOptions = errors.New("no manifests for this")

// Options say what runs where.
type Options struct {
	// Driver is its name, Namespace where it is to run.
	Driver, Namespace string
	// Image has the program volplane, DriverImage the driver.
	Image, DriverImage string
	// Args are those of the driver; further ones are for its container beside
	// the controllers, and for the one on every node. $(CSI_ENDPOINT) and
	// $(NODE_NAME) stand for where it is to serve, and for the node's name.
	Args, ControllerArgs, NodeArgs []string
	// Shape is that of the controller part, Replicas how many Pods a Deployment
	// has.
	Shape    string
	Replicas int32
	// Controllers are the names of those that run. They say whether volumes
	// are attached, and whether the driver's room is known.
	Controllers []string
	Attaches    bool
	TracksRoom  bool
	// KubeletDir is the kubelets' directory, HostPaths are further directories
	// of nodes that the driver uses there, at the same paths.
	KubeletDir string
	HostPaths  []string
	// NodeSelector and Tolerations bring the controller part to nodes of its
	// own (S1-096).
	NodeSelector map[string]string
	Tolerations  []corev1.Toleration
	// RBAC are the roles and bindings of the account that Account names.
	RBAC []runtime.Object
}

// Elects says whether several may run, of which one must lead.
func (o Options) Elects() bool { return o.Shape != StatefulSet }

// Account returns the service account of the controllers.
func (o Options) Account() string {
	if o.Shape == DaemonSet {
		return o.node()
	}
	return o.controller()
}

func (o Options) controller() string { return o.base() + "-controller" }
func (o Options) node() string       { return o.base() + "-node" }

// base is the driver's name as part of the names of objects.
func (o Options) base() string { return Base(o.Driver) }

// Base returns a driver's name as part of the names of objects. A long one is
// cut, and told apart by a hash.
func Base(driver string) string {
	name := strings.ReplaceAll(driver, ".", "-")
	if len(name) > maxBase {
		sum := sha256.Sum256([]byte(driver))
		name = fmt.Sprintf("%s-%x", strings.TrimRight(name[:maxBase-9], "-"), sum[:4])
	}
	return name
}

// Validate returns ErrOptions with the first thing that is wrong.
func (o Options) Validate() error {
	for _, c := range []struct {
		bad bool
		say string
	}{
		{
			len(o.Driver) > 63 || len(validation.IsDNS1123Subdomain(o.Driver)) > 0,
			fmt.Sprintf("the driver's name %.80q is not a domain name of at most 63 small characters", o.Driver),
		},
		{len(validation.IsDNS1123Label(o.Namespace)) > 0, fmt.Sprintf("%.80q is no name of a namespace", o.Namespace)},
		{o.Image == "", "the image with volplane is not named"},
		{o.DriverImage == "", "the driver's image is not named"},
		{!slices.Contains(Shapes(), o.Shape), fmt.Sprintf("there is no shape %.80q: there are %s", o.Shape,
			strings.Join(Shapes(), ", "))},
		{o.Replicas < 1, "there must be a replica"},
		{o.Replicas != 1 && o.Shape == StatefulSet, "a StatefulSet has one replica: more need a leader"},
		{
			o.Shape == DaemonSet && (len(o.NodeSelector) > 0 || len(o.Tolerations) > 0),
			"a DaemonSet for everything runs on every node: there are no nodes for its controllers",
		},
		{
			o.Shape == DaemonSet && (len(o.ControllerArgs) > 0 || len(o.NodeArgs) > 0),
			"a DaemonSet for everything has one container of the driver: its arguments are the same",
		},
	} {
		if c.bad {
			return fmt.Errorf("%w: %s", ErrOptions, c.say)
		}
	}
	return o.checkPaths()
}

func (o Options) checkPaths() error {
	for _, p := range append([]string{o.KubeletDir}, o.HostPaths...) {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
			return fmt.Errorf("%w: %q is not an absolute path of a directory", ErrOptions, p)
		}
	}
	return nil
}

// socketDir is the directory of the driver's socket on a node.
func (o Options) socketDir() string { return path.Join(o.KubeletDir, "plugins", o.Driver) }

// labels are those of every object, and of Pods of one part, by which they are
// found.
func (o Options) labels(part string) map[string]string {
	out := map[string]string{"app.kubernetes.io/name": o.Driver, "app.kubernetes.io/managed-by": "volplane"}
	if part != "" {
		out["app.kubernetes.io/component"] = part
	}
	return out
}

// owned says whether the namespace is made for the driver, and not one of
// Kubernetes' own.
func (o Options) owned() bool {
	return o.Namespace != corev1.NamespaceDefault && !strings.HasPrefix(o.Namespace, "kube-")
}
