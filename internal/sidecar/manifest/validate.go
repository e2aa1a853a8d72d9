package manifest

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// fault is something that options must not say.
type fault struct {
	is  bool
	say string
}

// Validate returns an error that wraps ErrOptions and names the first invalid option.
func (o Options) Validate() error {
	for _, f := range slices.Concat(o.nameFaults(), o.shapeFaults()) {
		if f.is {
			return fmt.Errorf("%w: %s", ErrOptions, f.say)
		}
	}
	if err := o.checkPaths(); err != nil {
		return err
	}
	for _, p := range []Part{o.Controller, o.Node} {
		if err := o.checkContainer(p.Container); err != nil {
			return err
		}
	}
	return o.checkResources()
}

func (o Options) nameFaults() []fault {
	return []fault{
		{
			len(o.Driver) > 63 || len(validation.IsDNS1123Subdomain(o.Driver)) > 0,
			fmt.Sprintf("the driver's name %.80q is not a domain name of at most 63 small characters", o.Driver),
		},
		{len(validation.IsDNS1123Label(o.Namespace)) > 0, fmt.Sprintf("%.80q is not a name of a namespace", o.Namespace)},
		{
			o.OwnNamespace && (o.Namespace == corev1.NamespaceDefault || strings.HasPrefix(o.Namespace, "kube-")),
			fmt.Sprintf("the namespace %s is not the driver's alone, and cannot be created with it", o.Namespace),
		},
		{
			len(o.base()) > maxBase || len(validation.IsDNS1123Label(o.base())) > 0,
			fmt.Sprintf("%.80q is not a name of at most %d characters for objects", o.Name, maxBase),
		},
		{o.Image == "", "the image with volplane is not named"},
		{o.DriverImage == "", "the driver's image is not named"},
	}
}

func (o Options) shapeFaults() []fault {
	alone := o.Shape == DaemonSet
	return []fault{
		{!slices.Contains(Shapes(), o.Shape), fmt.Sprintf("unknown shape %.80q: use %s", o.Shape,
			strings.Join(Shapes(), ", "))},
		{o.Replicas < 1, "there must be a replica"},
		{o.Replicas != 1 && o.Shape == StatefulSet, "a StatefulSet has one replica: more need a leader"},
		{
			alone && (len(o.Controller.NodeSelector) > 0 || len(o.Controller.Tolerations) > 0 || o.Controller.Affinity != nil),
			"a DaemonSet for everything runs on every node: there are no nodes for its controllers",
		},
		{
			alone && !(o.Controller.empty() && len(o.Node.Args) == 0),
			"a DaemonSet for everything has one container of the driver: its arguments are the same",
		},
		{
			o.MetricsPort != 0 && slices.ContainsFunc(o.ControllerArgs, setsWhatIsProbed),
			"the kubelet probes the controllers at the port of metrics, as the shape has them elect a leader: they cannot " +
				"have the arguments --http-endpoint and --leader-election",
		},
		{o.NodeDeployment && !alone, "controllers that work on each node for its volumes need a DaemonSet for everything"},
		{
			o.NodeDeployment && slices.Contains(o.Controllers, "snapshot-controller"),
			"the snapshot-controller is one for the whole cluster, and cannot run on each node for its volumes",
		},
		{
			o.NodeDeployment && o.Blocks != nil, "controllers that work on each node for its volumes know no changed blocks " +
				"of the others, and clients know one address",
		},
		{
			o.Blocks.incomplete(),
			"the service of changed blocks needs the Secret with its certificate, and the authority of this",
		},
		{alone && o.WithoutNodes, "a DaemonSet for everything is what runs on the nodes: it cannot be left out"},
	}
}

// incomplete says whether the service lacks its Secret or authority; none is complete.
func (b *Blocks) incomplete() bool {
	return b != nil && (len(validation.IsDNS1123Subdomain(b.Secret)) > 0 || b.CA == "")
}

// setsWhatIsProbed says whether an argument of the controllers changes what answers the kubelet.
func setsWhatIsProbed(arg string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	return name == "http-endpoint" || name == "leader-election"
}

// empty says that nothing is added to the driver's container.
func (c Container) empty() bool { return len(c.Args)+len(c.Env)+len(c.Volumes)+len(c.Mounts) == 0 }

func (o Options) checkPaths() error {
	for _, p := range []string{o.KubeletDir, o.socketDir()} {
		if err := checkPath(p); err != nil {
			return err
		}
	}
	return nil
}

func checkPath(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
		return fmt.Errorf("%w: %q is not an absolute path of a directory", ErrOptions, p)
	}
	return nil
}

// checkContainer checks what the driver's container of a part gets, together with what all have.
func (o Options) checkContainer(c Container) error {
	names := []string{volumeSocket, volumeKubelet, volumeRegistration, volumeTmp, volumeCertificates}
	for _, v := range slices.Concat(o.Container.Volumes, c.Volumes) {
		if slices.Contains(names, v.Name) {
			return fmt.Errorf("%w: two volumes are called %q", ErrOptions, v.Name)
		}
		names = append(names, v.Name)
		if h := v.HostPath; h != nil {
			if err := checkPath(h.Path); err != nil {
				return err
			}
		}
	}
	paths := []string{mountSocket, o.KubeletDir}
	for _, m := range slices.Concat(o.Container.Mounts, c.Mounts) {
		if err := checkPath(m.MountPath); err != nil {
			return err
		}
		if slices.Contains(paths, m.MountPath) {
			return fmt.Errorf("%w: two volumes are mounted at %s", ErrOptions, m.MountPath)
		}
		if !slices.Contains(names, m.Name) {
			return fmt.Errorf("%w: no volume is called %q", ErrOptions, m.Name)
		}
		paths = append(paths, m.MountPath)
	}
	return nil
}

func (o Options) checkResources() error {
	for name := range o.Resources {
		if !slices.Contains(Containers(), name) {
			return fmt.Errorf("%w: resources of %q: the containers are %s", ErrOptions, name,
				strings.Join(Containers(), ", "))
		}
	}
	return nil
}
