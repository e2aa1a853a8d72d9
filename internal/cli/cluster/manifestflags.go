package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/sidecar/manifest"
)

// manifestFlags are the options of the manifests, and flags that are parsed into them.
type manifestFlags struct {
	manifest.Options
	secrets, tolerations, pullSecrets         []string
	hostPaths, requests, limits               []string
	env, controllerEnv, nodeEnv               []string
	volumes, controllerVolumes, nodeVolumes   []string
	maxUnavailable, pullPolicy, driverPulling string
	blocksSecret, blocksCA                    string
	fromCluster, createNamespace              bool
	// given says whether a flag was given.
	given func(name string) bool
}

// register adds the flags to the command.
func (m *manifestFlags) register(c *cobra.Command, controllers []string) {
	f := c.Flags()
	f.StringVar(&m.Driver, "driver", "", "name of the driver")
	f.BoolVar(&m.fromCluster, "from-cluster", false,
		"keep what the cluster has of the driver: its CSIDriver, namespace, directories and controllers; and propose the "+
			"shape")
	f.BoolVar(&m.createNamespace, "create-namespace", false,
		"print the namespace, which is deleted with the rest (default true without --namespace)")
	m.images(f)
	m.workloads(f, controllers)
	m.container(f)
	m.host(f)
	m.blocks(f)
	csiDriverFlags(f, &m.CSIDriver)
	f.BoolVar(&m.WithoutCSIDriver, "without-csidriver", false, "print no CSIDriver, because another program creates it")
	f.BoolVar(&m.WithoutNodes, "without-nodes", false,
		"print nothing for the nodes, because another program runs the driver there")
	for _, name := range []string{"driver", "driver-image", "image"} {
		_ = c.MarkFlagRequired(name)
	}
	for name, values := range map[string][]string{
		"shape": manifest.Shapes(), "controllers": controllers, "image-pull-policy": pullPolicies(),
		"driver-image-pull-policy": pullPolicies(), "fs-group-policy": fsGroupPolicies(),
		"volume-lifecycle-modes": lifecycleModes(),
	} {
		_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

func (m *manifestFlags) images(f *pflag.FlagSet) {
	f.StringVar(&m.DriverImage, "driver-image", "", "image of the driver")
	f.StringVar(&m.Image, "image", "", "image of volplane, which starts it")
	f.StringVar(&m.pullPolicy, "image-pull-policy", "", "when the image of volplane is pulled: "+
		strings.Join(pullPolicies(), ", "))
	f.StringVar(&m.driverPulling, "driver-image-pull-policy", "", "when the image of the driver is pulled")
	f.StringSliceVar(&m.pullSecrets, "image-pull-secret", nil,
		"Secret in the driver's namespace with which images are pulled; may be repeated")
}

func (m *manifestFlags) workloads(f *pflag.FlagSet, controllers []string) {
	f.StringVar(&m.Shape, "shape", m.Shape,
		"workload of the controllers: "+strings.Join(manifest.Shapes(), ", ")+" (in the driver's Pod on every node)")
	f.BoolVar(&m.NodeDeployment, "node-deployment", false,
		"with the shape daemonset: on each node, the controllers work for the volumes that are created there")
	f.Int32Var(&m.Replicas, "replicas", m.Replicas, "replicas of a Deployment, one of which leads")
	f.BoolVar(&m.Spread, "spread", m.Spread, "prefer different nodes and zones for the replicas")
	f.BoolVar(&m.Budget, "disruption-budget", m.Budget, "let drains take only one replica at a time")
	f.StringSliceVar(&m.Controllers, "controllers", m.Controllers, "controllers to run: "+strings.Join(controllers, ", "))
	f.StringArrayVar(&m.ControllerArgs, "controllers-args", nil,
		"additional argument of 'volplane controller'; may be repeated")
	f.StringSliceVar(&m.secrets, "secrets", nil, "Secrets that the controllers may read: NAMESPACE/NAME, or * for all")
	f.StringToStringVar(&m.Controller.NodeSelector, "node-selector", nil,
		"labels of the nodes for the controllers' Pods, as KEY=VALUE")
	f.StringArrayVar(&m.tolerations, "toleration", nil,
		"toleration of the controllers' Pods, as KEY[=VALUE][:EFFECT]; may be repeated")
	f.Int32Var(&m.Controller.HealthPort, "controller-health-port", m.Controller.HealthPort,
		"port in the controllers' Pod where the kubelet probes the driver; 0 for no probe")
	f.Int32Var(&m.Node.HealthPort, "node-health-port", m.Node.HealthPort, "the same in the Pods on the nodes")
	f.Int32Var(&m.MetricsPort, "metrics-port", 0, "port where the controllers serve metrics; 0 for none")
	f.StringVar(&m.maxUnavailable, "max-unavailable", "1",
		"how many Pods on the nodes, or what share of them, are replaced at the same time; 0 to replace only those that are "+
			"deleted")
	f.StringArrayVar(&m.requests, "requests", nil, "resources that a container requests, as "+
		"CONTAINER:cpu=10m,memory=64Mi; may be repeated. The containers are "+strings.Join(manifest.Containers(), ", "))
	f.StringArrayVar(&m.limits, "limits", nil, "resources that a container may use, in the same form")
}

func (m *manifestFlags) container(f *pflag.FlagSet) {
	f.StringArrayVar(&m.Container.Args, "driver-args", m.Container.Args, "argument of the driver; may be repeated")
	f.StringArrayVar(&m.Controller.Args, "controller-args", nil,
		"additional argument of the driver beside the controllers; may be repeated")
	f.StringArrayVar(&m.Node.Args, "node-args", nil, "additional argument of the driver on the nodes; may be repeated")
	for _, c := range []struct {
		prefix, where string
		env, volumes  *[]string
	}{
		{"", "the driver", &m.env, &m.volumes},
		{"controller-", "the driver beside the controllers", &m.controllerEnv, &m.controllerVolumes},
		{"node-", "the driver on the nodes", &m.nodeEnv, &m.nodeVolumes},
	} {
		f.StringArrayVar(c.env, c.prefix+"env", nil,
			"environment of "+c.where+", as NAME=VALUE, NAME@secret/NAME/KEY or NAME@configmap/NAME/KEY; may be repeated")
		f.StringArrayVar(c.volumes, c.prefix+"volume", nil, "what is mounted into the container of "+c.where+
			", as PATH=secret/NAME, PATH=configmap/NAME, PATH=emptydir or PATH=emptydir/memory; may be repeated")
	}
}

func (m *manifestFlags) host(f *pflag.FlagSet) {
	f.StringVar(&m.KubeletDir, "kubelet-dir", m.KubeletDir, "root directory of the kubelets")
	f.StringVar(&m.SocketDir, "socket-dir", "",
		"directory of the driver's socket on the nodes (default plugins/DRIVER in the root directory of the kubelets)")
	f.BoolVar(&m.HostNetwork, "host-network", false, "the Pods on the nodes use the nodes' network")
	f.StringSliceVar(&m.hostPaths, "host-path", nil, "directory of a node to mount into the driver's container, such as "+
		"/dev, as HOST[:CONTAINER][:DirectoryOrCreate]; may be repeated")
}

func (m *manifestFlags) blocks(f *pflag.FlagSet) {
	f.StringVar(&m.blocksSecret, "changed-blocks-secret", "", "serve the changed blocks of snapshots with the "+
		"certificate (tls.crt, tls.key) in this Secret of the driver's namespace")
	f.StringVar(&m.blocksCA, "changed-blocks-ca", "", "`file` with the authority of that certificate, in PEM")
}

// csiDriverFlags adds a flag for each field of a CSIDriver, which stays nil without the flag.
func csiDriverFlags(f *pflag.FlagSet, to *storagev1.CSIDriverSpec) {
	for _, b := range []struct {
		name, usage string
		to          **bool
	}{
		{
			"attach-required", "volumes are attached before they are mounted (default: whether the attacher runs)",
			&to.AttachRequired,
		},
		{"pod-info-on-mount", "pass information about the Pod to the driver when a volume is mounted", &to.PodInfoOnMount},
		{
			"storage-capacity", "the scheduler considers the driver's free capacity (default: whether capacity runs)",
			&to.StorageCapacity,
		},
		{
			"requires-republish", "the driver is called periodically to publish volumes that are mounted",
			&to.RequiresRepublish,
		},
		{"selinux-mount", "the driver passes the mount option context= on, and no two volumes share a filesystem " +
			"(seLinuxMount)", &to.SELinuxMount},
		{
			"service-account-token-in-secrets", "tokens of service accounts are passed as secrets, not in the volume context",
			&to.ServiceAccountTokenInSecrets,
		},
		{
			"prevent-pod-scheduling-if-missing", "Pods are not scheduled to nodes on which the driver is not registered",
			&to.PreventPodSchedulingIfMissing,
		},
	} {
		f.BoolFunc(b.name, b.usage, func(v string) error {
			is, err := strconv.ParseBool(v)
			*b.to = &is
			return err
		})
	}
	f.Func("fs-group-policy", "who changes the group of a volume's files: "+strings.Join(fsGroupPolicies(), ", "),
		func(v string) error {
			policy := storagev1.FSGroupPolicy(v)
			to.FSGroupPolicy = &policy
			return oneOf(v, fsGroupPolicies())
		})
	f.Func("volume-lifecycle-modes", "kinds of volumes: "+strings.Join(lifecycleModes(), ", ")+" (inline in a Pod)",
		func(v string) error {
			for mode := range strings.SplitSeq(v, ",") {
				if err := oneOf(mode, lifecycleModes()); err != nil {
					return err
				}
				to.VolumeLifecycleModes = append(to.VolumeLifecycleModes, storagev1.VolumeLifecycleMode(mode))
			}
			return nil
		})
	f.Func("token-request",
		"token of the Pod's service account that the driver gets, as AUDIENCE[=DURATION]; may be repeated",
		func(v string) error {
			audience, life, timed := strings.Cut(v, "=")
			request := storagev1.TokenRequest{Audience: audience}
			if timed {
				seconds, err := seconds(life)
				if err != nil {
					return err
				}
				request.ExpirationSeconds = &seconds
			}
			to.TokenRequests = append(to.TokenRequests, request)
			return nil
		})
	f.Func("node-allocatable-update-period", "interval at which kubelets ask for the limit of volumes, at least 10s",
		func(v string) error {
			period, err := seconds(v)
			to.NodeAllocatableUpdatePeriodSeconds = &period
			return err
		})
}

func seconds(text string) (int64, error) {
	d, err := time.ParseDuration(text)
	if err == nil && (d < 10*time.Second || d%time.Second != 0) {
		return 0, fmt.Errorf("%s: use whole seconds, at least 10s", text)
	}
	return int64(d / time.Second), err
}

func oneOf(v string, all []string) error {
	if slices.Contains(all, v) {
		return nil
	}
	return fmt.Errorf("%q: use %s", v, strings.Join(all, ", "))
}

func fsGroupPolicies() []string {
	return []string{
		string(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy), string(storagev1.FileFSGroupPolicy),
		string(storagev1.NoneFSGroupPolicy),
	}
}

func lifecycleModes() []string {
	return []string{string(storagev1.VolumeLifecyclePersistent), string(storagev1.VolumeLifecycleEphemeral)}
}

func pullPolicies() []string {
	return []string{string(corev1.PullIfNotPresent), string(corev1.PullAlways), string(corev1.PullNever)}
}
