package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/manifest"
	"volplane.dev/volplane/internal/volume"
)

// manifestFlags are the options of the manifests, and flags that are parsed into them.
type manifestFlags struct {
	manifest.Options
	tolerations, secrets []string
}

func (s *shell) manifestsCommand() *cobra.Command {
	var m manifestFlags
	c := &cobra.Command{
		Use:   "manifests --driver NAME --driver-image IMAGE --image IMAGE",
		Short: "Print the manifests of a CSI driver for a cluster",
		Long: `Print the manifests with which a CSI driver runs in a Kubernetes cluster: the
driver with 'volplane controller', and on every node the driver with 'volplane
registrar', with exactly the rights that the controllers declare. The driver's
arguments may contain $(CSI_ENDPOINT), the address of its socket, and
$(NODE_NAME).`,
		Example: `  volplane manifests --driver csi.example.com --driver-image example.com/driver:1.0 \
      --image example.com/volplane:1.0 | kubectl apply -f -
  volplane manifests --driver csi.example.com --driver-image example.com/driver:1.0 \
      --image example.com/volplane:1.0 --shape statefulset --secrets storage/login`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return s.printManifests(m) },
	}
	f := c.Flags()
	f.StringVar(&m.Driver, "driver", "", "name of the driver")
	f.StringVar(&m.DriverImage, "driver-image", "", "image of the driver")
	f.StringVar(&m.Image, "image", "", "image with volplane in its PATH")
	f.StringArrayVar(&m.Args, "driver-args", []string{"--endpoint=$(CSI_ENDPOINT)", "--nodeid=$(NODE_NAME)"},
		"argument of the driver; may be repeated")
	f.StringArrayVar(&m.ControllerArgs, "controller-args", nil,
		"additional argument of the driver beside the controllers; may be repeated")
	f.StringArrayVar(&m.NodeArgs, "node-args", nil, "additional argument of the driver on the nodes; may be repeated")
	f.StringVar(&m.Shape, "shape", manifest.Deployment,
		"workload of the controllers: "+strings.Join(manifest.Shapes(), ", ")+" (in the driver's Pod on every node)")
	f.Int32Var(&m.Replicas, "replicas", 0, "replicas of a Deployment, one of which leads (default 2)")
	f.StringSliceVar(&m.Controllers, "controllers", []string{"provisioner", "attacher", "resizer"},
		"controllers to run: "+strings.Join(s.programs.DriverControllers, ", "))
	f.StringSliceVar(&m.secrets, "secrets", nil, "Secrets that the controllers may read: NAMESPACE/NAME, or * for all")
	f.BoolVar(&m.SELinuxMount, "selinux-mount", false,
		"the driver passes the mount option context= on, and no two volumes share a filesystem (seLinuxMount)")
	f.StringVar(&m.KubeletDir, "kubelet-dir", volume.KubeletDir, "root directory of the kubelets")
	f.StringSliceVar(&m.HostPaths, "host-path", nil,
		"directory of a node to mount into the driver's container, such as /dev; may be repeated")
	f.StringToStringVar(&m.NodeSelector, "node-selector", nil, "node selector of the controllers' Pods")
	f.StringSliceVar(&m.tolerations, "toleration", nil,
		"toleration of the controllers' Pods, as KEY[=VALUE][:EFFECT]; may be repeated")
	for _, name := range []string{"driver", "driver-image", "image"} {
		_ = c.MarkFlagRequired(name)
	}
	_ = c.RegisterFlagCompletionFunc("shape",
		cobra.FixedCompletions(manifest.Shapes(), cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("controllers",
		cobra.FixedCompletions(s.programs.DriverControllers, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (s *shell) printManifests(m manifestFlags) error {
	if err := s.checkRoles(m.Controllers); err != nil {
		return err
	}
	o := m.Options
	if o.Namespace = s.flags.namespace; o.Namespace == "" {
		o.Namespace = manifest.Base(o.Driver)
	}
	if o.Replicas == 0 {
		o.Replicas = 1
		if o.Shape == manifest.Deployment {
			o.Replicas = 2
		}
	}
	o.Attaches, o.TracksRoom = slices.Contains(o.Controllers, "attacher"), slices.Contains(o.Controllers, "capacity")
	for _, t := range m.tolerations {
		toleration, err := parseToleration(t)
		if err != nil {
			return err
		}
		o.Tolerations = append(o.Tolerations, toleration)
	}
	rights, err := onlySecrets(s.programs.Rights(o.Controllers, o.Driver, o.Namespace, o.Elects()), m.secrets)
	if err != nil {
		return err
	}
	o.RBAC = kube.Roles(o.Account(), rights, kube.ServiceAccount(o.Namespace, o.Account()))
	objects, err := manifest.Objects(o)
	if err != nil {
		return err
	}
	return s.printYAML(objects)
}

// printYAML prints manifests as one file for kubectl apply.
func (s *shell) printYAML(objects []runtime.Object) error {
	text, err := manifest.YAML(objects)
	if err != nil {
		return err
	}
	_, err = s.Out.Write(text)
	return err
}

// parseToleration reads KEY[=VALUE][:EFFECT].
func parseToleration(text string) (corev1.Toleration, error) {
	taint, effect, _ := strings.Cut(text, ":")
	key, value, equal := strings.Cut(taint, "=")
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)}
	if equal {
		t.Operator, t.Value = corev1.TolerationOpEqual, value
	}
	effects := []corev1.TaintEffect{
		"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute,
	}
	if key == "" || !slices.Contains(effects, t.Effect) {
		return t, fmt.Errorf("--toleration %q: use KEY[=VALUE][:EFFECT] with the effect NoSchedule, PreferNoSchedule or "+
			"NoExecute", text)
	}
	return t, nil
}

// onlySecrets restricts the right to read Secrets to the named ones.
func onlySecrets(rights []kube.Access, named []string) ([]kube.Access, error) {
	if slices.Equal(named, []string{"*"}) {
		return rights, nil
	}
	in := map[string][]string{}
	for _, n := range named {
		namespace, name, ok := strings.Cut(n, "/")
		if !ok || namespace == "" || name == "" || strings.ContainsAny(n, "*") {
			return nil, fmt.Errorf("--secrets %q: use NAMESPACE/NAME, or * alone", n)
		}
		in[namespace] = append(in[namespace], name)
	}
	var out []kube.Access
	for _, a := range rights {
		if a.Group != "" || a.Resource != "secrets" {
			out = append(out, a)
			continue
		}
		for _, namespace := range slices.Sorted(maps.Keys(in)) {
			out = append(out, kube.Access{Resource: a.Resource, Verbs: a.Verbs, Namespace: namespace, Names: in[namespace]})
		}
	}
	return out, nil
}
