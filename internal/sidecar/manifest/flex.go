package manifest

import (
	_ "embed" // the policy is a file
	"fmt"
	"maps"
	"path"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// FlexPolicy is the ValidatingAdmissionPolicy, as YAML, that has a cluster ask for the right to name a FlexVolume
// driver in a Pod. It is the same for all drivers.
//
//go:embed flexpolicy.yaml
var FlexPolicy string

// Flex configures the installation of a FlexVolume driver on the nodes of a cluster.
type Flex struct {
	// Driver is the driver's name, "example.com/lofs". CSI is its CSI name, "lofs.example.com".
	Driver, CSI string
	// Image is the container image that contains volplane, and the driver at the path Source.
	Image, Source string
	// Namespace is the namespace of the installer.
	Namespace string
	// Dir is the plugin directory of the nodes. PayloadDir is their directory for drivers of
	// several files; "" if Source is a file.
	Dir, PayloadDir string
	// SELinuxType is the SELinux type of the container, "spc_t" for example; it may be empty.
	SELinuxType string
}

// FlexObjects returns the DaemonSet that keeps a driver installed on each node (F-055, F-059). Its
// container runs until it is stopped, and restores the driver when it was changed (F-058).
func FlexObjects(f Flex) ([]runtime.Object, error) {
	for what, p := range map[string]string{
		"plugin directory": f.Dir, "payload directory": f.PayloadDir, "driver in the image": f.Source,
	} {
		if p != "" && (!path.IsAbs(p) || path.Clean(p) != p || p == "/") {
			return nil, fmt.Errorf("%w: the %s %q is not an absolute path", ErrOptions, what, p)
		}
	}
	labels := map[string]string{"app.kubernetes.io/name": f.CSI, "app.kubernetes.io/component": "flexvolume"}
	all := maps.Clone(labels)
	all["app.kubernetes.io/managed-by"] = "volplane"
	// A driver is replaced by one rename, so many nodes may be updated at the same time.
	quarter := intstr.FromString("25%")
	return []runtime.Object{&appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "flex-" + Base(f.CSI), Namespace: f.Namespace, Labels: all},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: all}, Spec: f.pod()},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &quarter},
			},
		},
	}}, nil
}

// pod returns the installer's Pod, which can access only those files of its node that it writes.
func (f Flex) pod() corev1.PodSpec {
	args := []string{"flex", "install", f.Driver, f.Source, "--watch", "--no-init", "--dir=" + f.Dir}
	volumes := []corev1.Volume{
		hostPath("drivers", f.Dir, corev1.HostPathDirectoryOrCreate),
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	mounts := []corev1.VolumeMount{{Name: "drivers", MountPath: f.Dir}, {Name: "tmp", MountPath: "/tmp"}}
	if f.PayloadDir != "" {
		args = append(args, "--payload-dir="+f.PayloadDir)
		volumes = append(volumes, hostPath("payload", f.PayloadDir, corev1.HostPathDirectoryOrCreate))
		mounts = append(mounts, corev1.VolumeMount{Name: "payload", MountPath: f.PayloadDir})
	}
	security := &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), RunAsUser: ptr.To[int64](0),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if f.SELinuxType != "" {
		security.SELinuxOptions = &corev1.SELinuxOptions{Type: f.SELinuxType}
	}
	return corev1.PodSpec{
		NodeSelector:                  map[string]string{corev1.LabelOSStable: string(corev1.Linux)},
		Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		PriorityClassName:             "system-node-critical",
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		TerminationGracePeriodSeconds: ptr.To[int64](5),
		Containers: []corev1.Container{{
			Name: "install", Image: f.Image, Command: []string{"volplane"}, Args: args, SecurityContext: security,
			VolumeMounts: mounts,
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("5m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
				},
				Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
			},
		}},
		Volumes: volumes,
	}
}
