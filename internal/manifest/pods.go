package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Volumes of the Pods and their mount paths.
const (
	volumeSocket       = "socket"
	volumeKubelet      = "kubelet"
	volumeRegistration = "registration"

	mountSocket       = "/csi"
	mountRegistration = "/registration"
	// socket is the path of the driver's socket in every container.
	socket = mountSocket + "/csi.sock"
)

// nobody is the id of a user that is not root and owns nothing on a node. All containers of the
// controllers' Pod run as this user, because one opens a socket of another.
const nobody = 65532

// controllerPod returns the Pod of the driver and the controllers, which share only the directory
// of the socket (S1-090). It fulfils the Pod Security Standard "restricted".
func (o Options) controllerPod() corev1.PodTemplateSpec {
	driver := o.driver(o.ControllerArgs)
	driver.SecurityContext = confined()
	selector := map[string]string{corev1.LabelOSStable: string(corev1.Linux)}
	maps.Copy(selector, o.NodeSelector)
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: o.labels(partController)},
		Spec: corev1.PodSpec{
			ServiceAccountName: o.controller(),
			PriorityClassName:  "system-cluster-critical",
			NodeSelector:       selector,
			Tolerations:        o.Tolerations,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](nobody), RunAsGroup: ptr.To[int64](nobody),
				FSGroup:        ptr.To[int64](nobody),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{driver, o.controllers()},
			Volumes: []corev1.Volume{
				{Name: volumeSocket, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
	}
}

// nodePod returns the Pod of the driver and its registrar and, for a DaemonSet, the controllers.
// Only the driver can access the kubelet's directory (S1-092), and only the registrar that of
// registration sockets (S1-091).
func (o Options) nodePod() corev1.PodTemplateSpec {
	both := corev1.MountPropagationBidirectional
	driver := o.driver(o.NodeArgs)
	driver.SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	driver.VolumeMounts = append(driver.VolumeMounts,
		corev1.VolumeMount{Name: volumeKubelet, MountPath: o.KubeletDir, MountPropagation: &both})
	volumes := []corev1.Volume{
		// The kubelet creates it for the first Pod of the driver (S1-093).
		hostPath(volumeSocket, o.socketDir(), corev1.HostPathDirectoryOrCreate),
		hostPath(volumeKubelet, o.KubeletDir, corev1.HostPathDirectory),
		hostPath(volumeRegistration, o.KubeletDir+"/plugins_registry", corev1.HostPathDirectory),
	}
	for i, path := range o.HostPaths {
		name := fmt.Sprint("host-", i)
		driver.VolumeMounts = append(driver.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
		volumes = append(volumes, hostPath(name, path, corev1.HostPathDirectory))
	}
	registrar := o.volplane("registrar", "registrar", "--csi-address="+socket,
		"--kubelet-registration-path="+o.socketDir()+"/csi.sock", "--plugin-registration-path="+mountRegistration)
	registrar.VolumeMounts = append(registrar.VolumeMounts,
		corev1.VolumeMount{Name: volumeRegistration, MountPath: mountRegistration})
	containers := []corev1.Container{driver, registrar}
	if o.Shape == DaemonSet {
		containers = append(containers, o.controllers())
	}
	for i := range containers[1:] {
		// The kubelet's directories are owned by root.
		containers[i+1].SecurityContext.RunAsUser = ptr.To[int64](0)
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: o.labels(partNode)},
		Spec: corev1.PodSpec{
			ServiceAccountName: o.node(),
			// Without controllers, the Pod sends no requests to the API server.
			AutomountServiceAccountToken: ptr.To(o.Shape == DaemonSet),
			PriorityClassName:            "system-node-critical",
			NodeSelector:                 map[string]string{corev1.LabelOSStable: string(corev1.Linux)},
			// Volumes are mounted wherever Pods run.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  containers,
			Volumes:     volumes,
		},
	}
}

func hostPath(name, path string, is corev1.HostPathType) corev1.Volume {
	return corev1.Volume{
		Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &is}},
	}
}

// driver returns the driver's container; the caller adds its permissions.
func (o Options) driver(args []string) corev1.Container {
	return corev1.Container{
		Name: "driver", Image: o.DriverImage, Args: slices.Concat(o.Args, args),
		Env: []corev1.EnvVar{
			{Name: "CSI_ENDPOINT", Value: "unix://" + socket},
			{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nodeName"},
			}},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: volumeSocket, MountPath: mountSocket}},
	}
}

// controllers returns the container of the controllers.
func (o Options) controllers() corev1.Container {
	election := "--leader-election=false"
	if o.Elects() {
		election = "--leader-election-namespace=" + o.Namespace
	}
	return o.volplane("controllers", "controller", "--csi-address="+socket,
		"--controllers="+strings.Join(o.Controllers, ","), election)
}

// volplane returns a container of volplane.
func (o Options) volplane(name string, args ...string) corev1.Container {
	return corev1.Container{
		Name: name, Image: o.Image, Command: []string{"volplane"}, Args: args, SecurityContext: confined(),
		VolumeMounts: []corev1.VolumeMount{{Name: volumeSocket, MountPath: mountSocket}},
	}
}

// confined returns the security context of a container that only needs to open sockets.
func confined() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}
