package adopt

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// TestWorkloadsOfDriver: which workloads belong to the driver, each alone in a cluster.
func TestWorkloadsOfDriver(t *testing.T) {
	registrar := corev1.Container{Name: "registrar", Image: "example.com/csi-node-driver-registrar:1"}
	program := func(args ...string) corev1.Container {
		return corev1.Container{Name: "driver", Image: "example.com/driver:1", Args: args}
	}
	pod := func(all ...corev1.Container) Workload { return Workload{Pod: corev1.PodSpec{Containers: all}} }
	starts := func(w Workload, init corev1.Container, policy *corev1.ContainerRestartPolicy) Workload {
		init.RestartPolicy = policy
		w.Pod.InitContainers = []corev1.Container{init}
		return w
	}
	of := func(release, namespace string) Workload {
		w := pod(registrar)
		w.Annotations = map[string]string{
			"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace,
		}
		return w
	}
	named := program("--name=" + driver)
	environment, directory := program(), pod(registrar)
	environment.Env = []corev1.EnvVar{{Name: "NAME", Value: driver}}
	directory.Pod.Volumes = []corev1.Volume{
		{Name: "empty"},
		{Name: "socket", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins/" + driver},
		}},
	}
	for _, c := range []struct {
		argues   string
		workload Workload
		is       bool
	}{
		{"an argument names it", pod(registrar, named), true},
		{"a variable names it", pod(registrar, environment), true},
		{"a directory names it", directory, true},
		{"nothing names it", pod(registrar, program()), false},
		{"another name begins like it", pod(registrar, program("--name="+driver+".other")), false},
		{
			"a registrar of any name registers it",
			pod(program("--kubelet-registration-path=/plugins/" + driver + "/csi.sock")), true,
		},
		{"a flag without a value", pod(program("--name="+driver, "--kubelet-registration-path")), false},
		{"a word that is no flag", pod(program("--name="+driver, "kubelet-registration-path=/csi.sock")), false},
		{"nothing registers or controls it", pod(named), false},
		{"the snapshot-controller is the whole cluster's", pod(named, corev1.Container{Image: "snapshot-controller"}), false},
		{
			"volplane's controllers",
			pod(named, corev1.Container{Args: []string{"controller", "--controllers=attacher"}}), true,
		},
		{"volplane's controllers without any", pod(named, corev1.Container{Args: []string{"controller"}}), false},
		{"the flag of another program", pod(named, program("run", "--controllers=attacher")), false},
		{
			"a sidecar that starts before the driver",
			starts(pod(named), registrar, ptr.To(corev1.ContainerRestartPolicyAlways)), true,
		},
		{"what ends before the driver starts", starts(pod(named), registrar, nil), false},
		{
			"what may fail before the driver starts",
			starts(pod(named), registrar, ptr.To(corev1.ContainerRestartPolicyOnFailure)), false,
		},
		{"the release of its CSIDriver", of("nfs", "kube-system"), true},
		{"another release", of("smb", "kube-system"), false},
		{"a release of the same name elsewhere", of("nfs", "other"), false},
	} {
		f := Facts{Driver: driver, Found: found("Helm"), Workloads: []Workload{c.workload}}
		f.Found.Annotations["meta.helm.sh/release-name"] = "nfs"
		f.Found.Annotations["meta.helm.sh/release-namespace"] = "kube-system"
		if is := len(f.ofDriver()) == 1; is != c.is {
			t.Errorf("%s: it is the driver's: %v", c.argues, is)
		}
	}
}
