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

// Kinds of workload for the controllers (S1-094, S1-095).
const (
	// Deployment runs several Pods with leader election; another one takes over within seconds,
	// even if the leader's node is lost.
	Deployment = "deployment"
	// StatefulSet runs one Pod without leader election. While its node is lost, no controller runs
	// until somebody confirms that the Pod has ended.
	StatefulSet = "statefulset"
	// DaemonSet runs the controllers in the Pod that is on every node, with leader election. Every
	// node then has the controllers' rights.
	DaemonSet = "daemonset"
)

// Shapes returns all of them.
func Shapes() []string { return []string{Deployment, StatefulSet, DaemonSet} }

// maxBase is the length limit of a base name, so that what Kubernetes appends to a StatefulSet's
// name fits into the 63 characters of a label.
const maxBase = 40

// ErrOptions says that options are invalid.
var ErrOptions = errors.New("no manifests for this")

// Options configure the manifests.
type Options struct {
	// Driver is the driver's name, Namespace the namespace of everything.
	Driver, Namespace string
	// Image is the container image of volplane, DriverImage that of the driver.
	Image, DriverImage string
	// Args are the arguments of the driver; ControllerArgs are added beside the controllers, and
	// NodeArgs on every node. $(CSI_ENDPOINT) and $(NODE_NAME) stand for the driver's endpoint and
	// the node's name.
	Args, ControllerArgs, NodeArgs []string
	// Shape is the kind of workload for the controllers. Replicas is the number of Pods of a
	// Deployment.
	Shape    string
	Replicas int32
	// Controllers are the names of the controllers to run. Attaches says whether volumes are
	// attached, TracksRoom whether the driver's capacity is published.
	Controllers []string
	Attaches    bool
	TracksRoom  bool
	// SELinuxMount says that the driver can mount each volume with a label of its own.
	SELinuxMount bool
	// KubeletDir is the root directory of the kubelets. HostPaths are further directories of the
	// nodes that the driver uses, at the same paths.
	KubeletDir string
	HostPaths  []string
	// NodeSelector and Tolerations select the nodes of the controllers (S1-096).
	NodeSelector map[string]string
	Tolerations  []corev1.Toleration
	// RBAC are the roles and bindings of the account that Account names.
	RBAC []runtime.Object
}

// Elects says whether the controllers need leader election.
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

// base returns the driver's name in a form for names of objects.
func (o Options) base() string { return Base(o.Driver) }

// Base returns a driver's name in a form for names of objects. A long name is shortened and made
// unique by a hash.
func Base(driver string) string {
	name := strings.ReplaceAll(driver, ".", "-")
	if len(name) > maxBase {
		sum := sha256.Sum256([]byte(driver))
		name = fmt.Sprintf("%s-%x", strings.TrimRight(name[:maxBase-9], "-"), sum[:4])
	}
	return name
}

// Validate returns an error that wraps ErrOptions and names the first invalid option.
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

// socketDir returns the directory of the driver's socket on a node.
func (o Options) socketDir() string { return path.Join(o.KubeletDir, "plugins", o.Driver) }

// labels returns the labels of every object and, for a part, also the one that selects its Pods.
func (o Options) labels(part string) map[string]string {
	out := map[string]string{"app.kubernetes.io/name": o.Driver, "app.kubernetes.io/managed-by": "volplane"}
	if part != "" {
		out["app.kubernetes.io/component"] = part
	}
	return out
}

// owned says whether the namespace is created for the driver, and not one of Kubernetes' own.
func (o Options) owned() bool {
	return o.Namespace != corev1.NamespaceDefault && !strings.HasPrefix(o.Namespace, "kube-")
}
