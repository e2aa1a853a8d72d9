package driverimport

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"volplane.dev/volplane/internal/hosting/driverfile"
)

// Options say what the manifests do not.
type Options struct {
	// Name is the CSI name of the driver; empty to find it in the manifests.
	Name string
	// Namespace is that of objects without one.
	Namespace string
	// NodeDir is the root directory of the node agent, which takes the place of the kubelet's.
	NodeDir string
	// Programs are the paths of programs on this host, by image: as the manifests name it, without its tag, or the last
	// part of its name alone. A program takes the place of the container's command without its arguments.
	Programs map[string]string
	// ImageRoot is a directory with the files of the image, for containers that name their program.
	ImageRoot string
	// NoAccounts says that programs do not get the service accounts of their Pods.
	NoAccounts bool
}

// Note is about a part of the manifests.
type Note struct {
	// Object is KIND/NAME, and Part what of it is meant, as "container x"; Part may be empty.
	Object, Part string
	Why          string
}

// String returns the note as a sentence.
func (n Note) String() string {
	if n.Part == "" {
		return n.Object + ": " + n.Why
	}
	return n.Object + ", " + n.Part + ": " + n.Why
}

// Result is what the manifests become.
type Result struct {
	// Drivers are the drivers that the host can run, sorted by name.
	Drivers []driverfile.Driver
	// Objects are to be applied, in the order of the manifests.
	Objects []*unstructured.Unstructured
	// Replaced is what volplane does itself.
	Replaced []Note
	// Left is what could not be taken. A person decides whether it matters.
	Left []Note
	// Missing is what must be said before a driver can be run: it is not among Drivers.
	Missing []Note
}

// importer is an import under way.
type importer struct {
	Options
	Result
	// names are the CSI names that objects mention.
	names []string
	// configs, secrets and accounts are the objects of these kinds, by NAMESPACE/NAME.
	configs, secrets, accounts map[string]*unstructured.Unstructured
	drivers                    map[string]*found
}

// found is what the workloads say about one driver.
type found struct {
	processes  []part
	incomplete bool
}

// part is a process and where it is from.
type part struct {
	driverfile.Process
	from string
	// ports are where the container listens, in a network of its own.
	ports []corev1.ContainerPort
}

// Import returns what the objects of manifests become. It changes none of them.
func Import(objects []*unstructured.Unstructured, o Options) Result {
	m := &importer{
		Options: o, configs: map[string]*unstructured.Unstructured{}, secrets: map[string]*unstructured.Unstructured{},
		accounts: map[string]*unstructured.Unstructured{}, drivers: map[string]*found{},
	}
	var workloads []*unstructured.Unstructured
	for _, u := range objects {
		switch u.GetKind() {
		case "DaemonSet", "Deployment", "StatefulSet":
			workloads = append(workloads, u)
		default:
			m.object(u)
		}
	}
	m.workloads(workloads)
	for _, name := range slices.Sorted(maps.Keys(m.drivers)) {
		m.join(name, m.drivers[name])
	}
	if len(m.drivers) == 0 && len(m.Missing) == 0 {
		m.Missing = append(m.Missing, Note{Object: "the manifests", Why: "no workload has a container with a CSI driver; " +
			"render the chart, or use the files of the driver and not only those of its objects"})
	}
	return m.Result
}

// taken are the kinds of objects that mean the same here as in a cluster.
func taken(kind string) bool {
	return slices.Contains([]string{
		"CSIDriver", "StorageClass", "VolumeAttributesClass", "VolumeSnapshotClass", "CustomResourceDefinition", "Namespace",
		"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Secret", "ConfigMap",
	}, kind)
}

// object takes an object that is not a workload, or says why not.
func (m *importer) object(u *unstructured.Unstructured) {
	name := u.GetKind() + "/" + u.GetName()
	switch kind := u.GetKind(); {
	case taken(kind):
		m.Objects = append(m.Objects, u)
		m.remember(u)
	case aboutPods(kind):
		m.left(name, "", "it is about the Pods of the driver, and the driver runs in none")
	case strings.HasSuffix(kind, "WebhookConfiguration"):
		m.left(name, "", "the API server calls no webhooks; what it refuses or changes in a cluster stays as it is here")
	case kind == "Pod" || kind == "Job" || kind == "CronJob" || kind == "ReplicaSet":
		m.left(name, "", "volplane runs no containers; if the driver needs what it does, do that on the host")
	default:
		m.left(name, "", "objects of this kind mean nothing here")
	}
}

// aboutPods are kinds of objects that say something of the Pods of a driver.
func aboutPods(kind string) bool {
	return slices.Contains([]string{"Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy"}, kind)
}

// remember keeps what workloads refer to.
func (m *importer) remember(u *unstructured.Unstructured) {
	key := cmp.Or(u.GetNamespace(), m.Namespace) + "/" + u.GetName()
	switch u.GetKind() {
	case "CSIDriver":
		m.names = append(m.names, u.GetName())
	case "StorageClass":
		if name, _, _ := unstructured.NestedString(u.Object, "provisioner"); name != "" {
			m.names = append(m.names, name)
		}
	case "ConfigMap":
		m.configs[key] = u
	case "Secret":
		m.secrets[key] = u
	case "ServiceAccount":
		m.accounts[key] = u
	}
}

func (m *importer) left(object, part, format string, args ...any) {
	m.Left = append(m.Left, Note{object, part, fmt.Sprintf(format, args...)})
}

func (m *importer) missing(object, part, format string, args ...any) {
	m.Missing = append(m.Missing, Note{object, part, fmt.Sprintf(format, args...)})
}

// join makes a driver of the processes that the workloads have.
func (m *importer) join(name string, f *found) {
	d := driverfile.Driver{APIVersion: driverfile.APIVersion, Kind: driverfile.Kind, Name: name}
	owner := map[driverfile.Role]string{}
	for _, p := range f.processes {
		if i := slices.IndexFunc(p.Roles, func(r driverfile.Role) bool { return owner[r] != "" }); i >= 0 {
			m.left(p.from, "", "%s has the role %s already, and a driver has one process for each role", owner[p.Roles[i]],
				p.Roles[i])
			continue
		}
		for _, r := range p.Roles {
			owner[r] = p.from
		}
		d.Processes = append(d.Processes, p.Process)
	}
	if f.incomplete || len(d.Processes) == 0 {
		return
	}
	m.ports(f.processes)
	if len(d.Processes) == 1 {
		// The driver will be queried for its services.
		d.Processes[0].Roles = []driverfile.Role{driverfile.RoleController, driverfile.RoleNode}
	}
	if err := driverfile.Check(d); err != nil {
		m.missing("driver/"+name, "", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	m.Drivers = append(m.Drivers, d)
}

// ports says which ports two processes of a driver would have to share.
func (m *importer) ports(all []part) {
	first := map[int32]string{}
	for _, p := range all {
		for _, port := range p.ports {
			switch from := first[port.ContainerPort]; from {
			case "":
				first[port.ContainerPort] = p.from
			case p.from:
			default:
				m.left(p.from, fmt.Sprintf("port %d", port.ContainerPort), "%s listens at it, too, and both are on one host; "+
					"give one of them another", from)
			}
		}
	}
}
