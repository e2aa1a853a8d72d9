package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Volumes of the Pods and their mount paths.
const (
	volumeSocket       = "socket"
	volumeKubelet      = "kubelet"
	volumeRegistration = "registration"
	volumeTmp          = "tmp"

	mountSocket       = "/csi"
	mountRegistration = "/registration"
	mountTmp          = "/tmp"
	// socket is the path of the driver's socket in every container.
	socket = mountSocket + "/csi.sock"
)

// Containers of the Pods, as their resources are called.
const (
	containerControllers = "controllers"
	containerRegistrar   = "registrar"
	containerLiveness    = "liveness"
	containerBlocks      = "snapshot-metadata"
	driverOfController   = "controller-driver"
	driverOfNode         = "node-driver"
)

// Containers returns all of them.
func Containers() []string {
	return []string{
		containerControllers, containerRegistrar, containerLiveness, containerBlocks, driverOfController, driverOfNode,
	}
}

// nobody is the id of a user that is not root and owns nothing on a node. All containers of the
// controllers' Pod run as this user, because one opens a socket of another.
const nobody = 65532

// controllerPod returns the Pod of the driver and the controllers, which share only the directory
// of the socket (S1-090). It fulfils the Pod Security Standard "restricted".
func (o Options) controllerPod() corev1.PodTemplateSpec {
	driver, volumes := o.driver(o.Controller, driverOfController)
	driver.SecurityContext = confined()
	volumes = slices.Insert(volumes, 0, emptyDir(volumeSocket))
	if !mounted(driver, mountTmp) {
		// Its own files cannot be written, and many drivers write temporary ones.
		driver.VolumeMounts = append(driver.VolumeMounts, corev1.VolumeMount{Name: volumeTmp, MountPath: mountTmp})
		volumes = append(volumes, emptyDir(volumeTmp))
	}
	pod := o.pod(o.Controller, partController)
	pod.Spec.ServiceAccountName = o.controllerAccount()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](nobody), RunAsGroup: ptr.To[int64](nobody),
		FSGroup:        ptr.To[int64](nobody),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if o.Spread && o.Shape == Deployment {
		pod.Spec.TopologySpreadConstraints = o.spread()
	}
	pod.Spec.Containers = slices.Concat([]corev1.Container{driver}, o.clients(), o.liveness(o.Controller))
	pod.Spec.Volumes = append(volumes, o.certificates()...)
	return pod
}

// pod returns what both kinds of Pods have.
func (o Options) pod(p Part, part string) corev1.PodTemplateSpec {
	labels := maps.Clone(p.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, o.labels(part))
	selector := map[string]string{corev1.LabelOSStable: string(corev1.Linux)}
	maps.Copy(selector, p.NodeSelector)
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: p.Annotations},
		Spec: corev1.PodSpec{
			PriorityClassName: p.PriorityClass, NodeSelector: selector, Tolerations: p.Tolerations, Affinity: p.Affinity,
			ImagePullSecrets: o.PullSecrets,
		},
	}
}

// spread asks for Pods on different nodes and in different zones, but runs them anyway where there is one.
func (o Options) spread() []corev1.TopologySpreadConstraint {
	var out []corev1.TopologySpreadConstraint
	for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone} {
		out = append(out, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: o.selector(partController),
		})
	}
	return out
}

// nodePod returns the Pod of the driver and its registrar and, for a DaemonSet, the controllers.
// Only the driver can access the kubelet's directory (S1-092), and only the registrar that of
// registration sockets (S1-091).
func (o Options) nodePod() corev1.PodTemplateSpec {
	both := corev1.MountPropagationBidirectional
	driver, more := o.driver(o.Node, driverOfNode)
	driver.SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	driver.VolumeMounts = slices.Insert(driver.VolumeMounts, 1,
		corev1.VolumeMount{Name: volumeKubelet, MountPath: o.KubeletDir, MountPropagation: &both})
	registrar := o.beside(containerRegistrar, "csi-node-driver-registrar",
		"--kubelet-registration-path="+o.socketDir()+"/csi.sock", "--plugin-registration-path="+mountRegistration)
	registrar.VolumeMounts = append(registrar.VolumeMounts,
		corev1.VolumeMount{Name: volumeRegistration, MountPath: mountRegistration})
	containers := []corev1.Container{driver, registrar}
	if o.Shape == DaemonSet {
		containers = append(containers, o.clients()...)
		more = append(more, o.certificates()...)
	}
	containers = append(containers, o.liveness(o.Node)...)
	for i := range containers[1:] {
		// The kubelet's directories are owned by root.
		containers[i+1].SecurityContext.RunAsUser = ptr.To[int64](0)
	}
	pod := o.pod(o.Node, partNode)
	pod.Spec.ServiceAccountName = o.nodeAccount()
	// Without controllers, the Pod sends no requests to the API server.
	pod.Spec.AutomountServiceAccountToken = ptr.To(o.Shape == DaemonSet)
	if o.HostNetwork {
		pod.Spec.HostNetwork, pod.Spec.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
	}
	pod.Spec.Containers = containers
	pod.Spec.Volumes = append([]corev1.Volume{
		// The kubelet creates it for the first Pod of the driver (S1-093).
		hostPath(volumeSocket, o.socketDir(), corev1.HostPathDirectoryOrCreate),
		hostPath(volumeKubelet, o.KubeletDir, corev1.HostPathDirectory),
		hostPath(volumeRegistration, o.KubeletDir+"/plugins_registry", corev1.HostPathDirectory),
	}, more...)
	return pod
}

func hostPath(name, path string, is corev1.HostPathType) corev1.Volume {
	return corev1.Volume{
		Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &is}},
	}
}

func emptyDir(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

func mounted(c corev1.Container, at string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == at })
}

// driver returns the driver's container in a part, and the requested volumes; the caller adds its
// permissions.
func (o Options) driver(p Part, resources string) (corev1.Container, []corev1.Volume) {
	c := corev1.Container{
		Name: "driver", Image: o.DriverImage, ImagePullPolicy: o.DriverPullPolicy,
		Args: slices.Concat(o.Container.Args, p.Args),
		Env: slices.Concat([]corev1.EnvVar{
			{Name: "CSI_ENDPOINT", Value: "unix://" + socket}, nodeName(),
		}, o.Container.Env, p.Env),
		Resources: o.Resources[resources],
		VolumeMounts: slices.Concat([]corev1.VolumeMount{{Name: volumeSocket, MountPath: mountSocket}},
			o.Container.Mounts, p.Mounts),
	}
	if p.HealthPort != 0 {
		// The driver may wait for its backend when it starts; later it is restarted after two and a half minutes.
		c.LivenessProbe = &corev1.Probe{
			ProbeHandler: health("/healthz", p.HealthPort), InitialDelaySeconds: 30, PeriodSeconds: 30,
			TimeoutSeconds: 10, FailureThreshold: 5,
		}
	}
	return c, slices.Concat(o.Container.Volumes, p.Volumes)
}

func health(path string, port int32) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)}}
}

func nodeName() corev1.EnvVar {
	return corev1.EnvVar{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nodeName"},
	}}
}

// clients returns the containers that send requests to the API server.
func (o Options) clients() []corev1.Container {
	if o.Blocks == nil {
		return []corev1.Container{o.controllers()}
	}
	return []corev1.Container{o.controllers(), o.blocksContainer()}
}

// controllers returns the container of the controllers.
func (o Options) controllers() corev1.Container {
	args := []string{"controller", "--csi-address=" + socket, "--controllers=" + strings.Join(o.Controllers, ",")}
	if o.Elects() {
		args = append(args, "--leader-election-namespace="+o.Namespace)
	} else {
		args = append(args, "--leader-election=false")
	}
	if o.NodeDeployment {
		args = append(args, "--provisioner-node-deployment", "--snapshotter-node-deployment")
	}
	if o.MetricsPort != 0 {
		args = append(args, fmt.Sprint("--http-endpoint=:", o.MetricsPort))
	}
	c := o.volplane(containerControllers, append(args, o.ControllerArgs...)...)
	if o.NodeDeployment {
		c.Env = []corev1.EnvVar{nodeName()}
	}
	if o.MetricsPort != 0 {
		c.Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: o.MetricsPort, Protocol: corev1.ProtocolTCP}}
		c.ReadinessProbe, c.LivenessProbe = o.probes()
	}
	return c
}

// probes returns what the kubelet asks the controllers, where they serve anything. A driver that does not answer makes
// them not ready, so that an update goes no further, but they are not restarted for it.
func (o Options) probes() (readiness, liveness *corev1.Probe) {
	lives := "/livez"
	if o.Elects() {
		lives = "/healthz/leader-election"
	}
	return &corev1.Probe{ProbeHandler: health("/readyz", o.MetricsPort), PeriodSeconds: 10, TimeoutSeconds: 5},
		&corev1.Probe{
			ProbeHandler: health(lives, o.MetricsPort), InitialDelaySeconds: 10, PeriodSeconds: 20, TimeoutSeconds: 10,
			FailureThreshold: 3,
		}
}

// liveness returns the container at which the kubelet probes whether the driver is alive.
func (o Options) liveness(p Part) []corev1.Container {
	if p.HealthPort == 0 {
		return nil
	}
	return []corev1.Container{o.beside(containerLiveness, "livenessprobe",
		fmt.Sprint("--http-endpoint=:", p.HealthPort))}
}

// beside returns a container of a program that needs no API server: of volplane-node-sidecars, by one of its names in
// volplane's image. The registrar and the liveness probe do not share a process: a registrar that the kubelet refuses
// ends, and must not have the kubelet restart a driver that lives.
func (o Options) beside(name, program string, args ...string) corev1.Container {
	c := o.volplane(name, append([]string{"--csi-address=" + socket}, args...)...)
	c.Command = []string{program}
	return c
}

// volplane returns a container of volplane, whose image starts it.
func (o Options) volplane(name string, args ...string) corev1.Container {
	return corev1.Container{
		Name: name, Image: o.Image, ImagePullPolicy: o.PullPolicy, Args: args, SecurityContext: confined(),
		Resources:    o.Resources[name],
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
