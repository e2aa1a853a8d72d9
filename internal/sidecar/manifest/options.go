package manifest

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ManagedBy is the value of the label app.kubernetes.io/managed-by of what volplane's manifests have created.
const ManagedBy = "volplane"

// Kinds of workload for the controllers (S1-094, S1-095).
const (
	// Deployment runs several Pods with leader election; another one takes over within seconds,
	// even if the leader's node is lost.
	Deployment = "deployment"
	// StatefulSet runs one Pod without leader election. While its node is lost, no controller runs
	// until an administrator confirms that the Pod has ended.
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
	// Driver is the driver's name, Namespace the namespace of everything. OwnNamespace says that the
	// namespace is the driver's alone: it is created, and deleted, with the rest.
	Driver, Namespace string
	OwnNamespace      bool
	// Name begins the names of the objects; empty means Base of the driver.
	Name string
	// Labels are those of every object; the values of App and Instance are among those that select
	// Pods, and cannot change later. Empty means the driver's name, and no such label.
	Labels        map[string]string
	App, Instance string
	// ManagedBy is the program that creates the objects; empty means volplane.
	ManagedBy string
	// Image is the container image of volplane, DriverImage that of the driver.
	Image, DriverImage           string
	PullPolicy, DriverPullPolicy corev1.PullPolicy
	PullSecrets                  []corev1.LocalObjectReference
	// Container is the driver's container, wherever it runs; Controller and Node add to it.
	Container Container
	// Shape is the kind of workload for the controllers. Replicas is the number of Pods of a
	// Deployment, Spread whether they should be on different nodes and in different zones, and
	// Budget whether a drain takes only one at a time.
	Shape          string
	Replicas       int32
	Spread, Budget bool
	// NodeDeployment says that the controllers of a DaemonSet work on each node for the node's own volumes; otherwise one
	// Pod of it works for all.
	NodeDeployment bool
	// Controllers are the names of the controllers to run.
	Controllers []string
	// ControllerArgs are more arguments of the controllers.
	ControllerArgs []string
	// MetricsPort is where the controllers serve metrics; 0 for nowhere.
	MetricsPort int32
	// WithoutCSIDriver, WithoutNodes, WithoutAccounts and WithoutRBAC leave out objects that others
	// have created.
	WithoutCSIDriver, WithoutNodes, WithoutAccounts, WithoutRBAC bool
	// CSIDriver is the spec of the CSIDriver. Fields that the API server requires follow from the
	// controllers if they are nil. DriverMeta are its labels and annotations.
	CSIDriver  storagev1.CSIDriverSpec
	DriverMeta metav1.ObjectMeta
	// KubeletDir is the root directory of the kubelets, SocketDir the directory of the driver's socket
	// on the nodes; empty means the usual one below KubeletDir.
	KubeletDir, SocketDir string
	// HostNetwork has the Pods on the nodes use the nodes' network.
	HostNetwork bool
	// NodeUpdates is how the Pods on the nodes are replaced.
	NodeUpdates appsv1.DaemonSetUpdateStrategy
	// Controller and Node are the Pods of the controllers, and those on every node.
	Controller, Node Part
	// Resources are those of each container, by its name; those of the driver's containers are called
	// controller-driver and node-driver.
	Resources map[string]corev1.ResourceRequirements
	// Blocks serve the changed blocks of the driver's snapshots; nil for nothing.
	Blocks *Blocks
	// RBAC are the roles and bindings of the account that Account names.
	RBAC []runtime.Object
}

// Blocks configure the service of changed blocks.
type Blocks struct {
	// Secret is the name of the Secret with the certificate (tls.crt) and its key (tls.key), for the name that
	// BlocksHost returns.
	Secret string
	// CA is the authority of the certificate, in PEM.
	CA string
}

// Container is what a driver's container gets. $(CSI_ENDPOINT) and $(NODE_NAME) in Args stand for the
// driver's endpoint and the node's name.
type Container struct {
	Args    []string
	Env     []corev1.EnvVar
	Volumes []corev1.Volume
	Mounts  []corev1.VolumeMount
}

// Part configures the Pods of one workload.
type Part struct {
	Container
	// NodeSelector, Tolerations and Affinity select the nodes (S1-096).
	NodeSelector map[string]string
	Tolerations  []corev1.Toleration
	Affinity     *corev1.Affinity
	// PriorityClass is that of the Pods; empty for none.
	PriorityClass       string
	Labels, Annotations map[string]string
	// HealthPort is the port at which the kubelet probes the driver's health; 0 for none.
	HealthPort int32
	// Account is the name of the service account; empty means the name of the workload.
	Account string
}

// Defaults returns the options which most drivers keep.
func Defaults() Options {
	small := func(cpu, memory string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		}}
	}
	one := intstr.FromInt32(1)
	return Options{
		Container: Container{Args: []string{"--endpoint=$(CSI_ENDPOINT)", "--nodeid=$(NODE_NAME)"}},
		Shape:     Deployment, Replicas: 2, Spread: true, Budget: true,
		Controllers: []string{"provisioner", "attacher", "resizer"},
		KubeletDir:  "/var/lib/kubelet",
		NodeUpdates: appsv1.DaemonSetUpdateStrategy{
			Type:          appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &one},
		},
		Controller: Part{PriorityClass: "system-cluster-critical", HealthPort: 9808},
		// Volumes are mounted wherever Pods run.
		Node: Part{
			PriorityClass: "system-node-critical", HealthPort: 9809,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
		// No limits: a process that is killed for its memory comes back to the same objects.
		Resources: map[string]corev1.ResourceRequirements{
			containerControllers: small("20m", "64Mi"), containerRegistrar: small("5m", "16Mi"),
			containerLiveness: small("5m", "16Mi"), containerBlocks: small("5m", "32Mi"),
		},
	}
}

// Elects says whether the controllers need leader election.
func (o Options) Elects() bool { return o.Shape != StatefulSet }

// Account returns the service account of the controllers.
func (o Options) Account() string {
	if o.Shape == DaemonSet {
		return o.nodeAccount()
	}
	return o.controllerAccount()
}

// BlocksHost returns the name under which clients reach the service of changed blocks.
func (o Options) BlocksHost() string { return o.blocks() + "." + o.Namespace + ".svc" }

func (o Options) blocks() string            { return o.base() + "-blocks" }
func (o Options) controller() string        { return o.base() + "-controller" }
func (o Options) node() string              { return o.base() + "-node" }
func (o Options) controllerAccount() string { return cmp.Or(o.Controller.Account, o.controller()) }
func (o Options) nodeAccount() string       { return cmp.Or(o.Node.Account, o.node()) }

// RoleName returns the name of the roles and their bindings, which is that of the controllers' workload.
func (o Options) RoleName() string {
	if o.Shape == DaemonSet {
		return o.node()
	}
	return o.controller()
}

// base returns the driver's name in a form for names of objects.
func (o Options) base() string { return cmp.Or(o.Name, Base(o.Driver)) }

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

// socketDir returns the directory of the driver's socket on a node.
func (o Options) socketDir() string {
	return cmp.Or(o.SocketDir, path.Join(o.KubeletDir, "plugins", o.Driver))
}

// labels returns the labels of every object and, for a part, also the one that selects its Pods.
func (o Options) labels(part string) map[string]string {
	out := maps.Clone(o.Labels)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, o.selecting(part))
	out["app.kubernetes.io/managed-by"] = cmp.Or(o.ManagedBy, ManagedBy)
	return out
}

// selecting returns those labels that never change.
func (o Options) selecting(part string) map[string]string {
	out := map[string]string{"app.kubernetes.io/name": cmp.Or(o.App, o.Driver)}
	if o.Instance != "" {
		out["app.kubernetes.io/instance"] = o.Instance
	}
	if part != "" {
		out["app.kubernetes.io/component"] = part
	}
	return out
}
