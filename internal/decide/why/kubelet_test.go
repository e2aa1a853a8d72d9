package why_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// TestKubelets: what is told of Pods and nodes whose agent is a kubelet, which says
// nothing of mounts but by what comes after them, and by events.
func TestKubelets(t *testing.T) {
	equal(t, "kubelets.txt", written(t, kubeletRows(), func(s *scene) { s.kubelet("") }))
}

func kubeletRows() []row {
	const failed = `MountVolume.MountDevice failed for volume "v1" : rpc error: code = `
	const gone = ": transport endpoint is not connected"
	return append([]row{
		{"its containers run", "pvc/data", func(s *scene) {
			s.runs()
		}},
		{"they run, and events of failures are left", "pvc/data", func(s *scene) {
			s.warn("uid-web", volume.ReasonFailedMount, failed+"Internal desc = bad superblock")
			s.runs()
		}},
		{"its sandbox is there, its containers are not", "pvc/data", func(s *scene) { s.sandbox(corev1.ConditionTrue) }},
		{"the same, and nothing else is told", "pod/web", func(s *scene) {
			s.sandbox(corev1.ConditionTrue)
			s.pod.Status.Conditions = s.pod.Status.Conditions[1:]
		}},
		{"it is not, and nothing else is told, but a container of before", "pod/web", func(s *scene) {
			s.pod.Status.Conditions = s.pod.Status.Conditions[1:]
			s.pod.Status.ContainerStatuses[0].ContainerID = "x://1"
		}},
		{"an image is not to be had", "pod/web", func(s *scene) { s.kubelet("ImagePullBackOff") }},
		{"a container ends again and again", "pod/web", func(s *scene) {
			s.kubelet("CrashLoopBackOff")
			s.waiting().Message = "back-off 5m0s restarting failed container"
		}},
		{"a container lacks a Secret", "pod/web", func(s *scene) {
			s.kubelet("CreateContainerConfigError")
			s.waiting().Message = `secret "login" not found`
		}},
		{"a path in a volume cannot be had", "pod/web", func(s *scene) {
			s.kubelet("CreateContainerConfigError")
			s.waiting().Message = `failed to prepare subPath for volumeMount "data" of container "c"`
		}},
		{"the server of a mount is gone", "pod/web", func(s *scene) {
			s.kubelet("CreateContainerError")
			s.waiting().Message = `failed to stat "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v1/mount"` + gone
		}},
		{"the server of a mount is gone that is no driver's", "pod/web", func(s *scene) {
			s.kubelet("CreateContainerError")
			s.pod.Spec.Volumes = []corev1.Volume{{Name: "nfs"}}
			s.waiting().Message = `failed to stat "/var/lib/kubelet/pods/u/volumes/kubernetes.io~nfs/v1"` + gone
		}},
		{"the network of the sandbox cannot be made", "pod/web", func(s *scene) {
			s.warn("uid-web", volume.ReasonFailedMount, failed+"Internal desc = bad superblock")
			s.warn("uid-web", "FailedCreatePodSandBox", "network: no address is left")
		}},
		{"the sandbox could not be made, and after that the mount failed", "pod/web", func(s *scene) {
			s.warn("uid-web", "FailedCreatePodSandBox", "network: no address is left")
			s.warn("uid-web", volume.ReasonFailedMount, failed+"Internal desc = bad superblock")
		}},
		{"an old kubelet has started a container that has ended", "pod/web", func(s *scene) {
			s.pod.Status.Conditions = nil
			s.pod.Status.ContainerStatuses[0].ContainerID = "x://1"
		}},
		{"an old kubelet has started none", "pod/web", func(s *scene) { s.pod.Status.Conditions = nil }},
		{"the host was started anew, and the sandbox is not there yet", "pod/web", func(s *scene) {
			s.pod.Status.Phase = corev1.PodRunning
			s.pod.Status.ContainerStatuses[0].ContainerID = "x://1"
		}},
		{"an init container runs", "pod/web", func(s *scene) {
			s.kubelet("PodInitializing")
			main := s.pod.Status.ContainerStatuses
			s.runs()
			s.pod.Status.InitContainerStatuses, s.pod.Status.ContainerStatuses = s.pod.Status.ContainerStatuses, main
		}},
		{"the kubelet has not seen the Pod", "pod/web", func(s *scene) { s.pod.Status = corev1.PodStatus{} }},
	}, unmountedRows()...)
}

// unmountedRows are of Pods whose volumes are not mounted.
func unmountedRows() []row {
	const failed = `MountVolume.MountDevice failed for volume "v1" : rpc error: code = `
	return append([]row{
		{"the kubelet is at it", "pod/web", func(s *scene) {
			s.pod.Status.StartTime = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		}},
		{"the Node does not have it attached yet", "pod/web", func(s *scene) { s.n1.Status.VolumesAttached = nil }},
		{"a driver that needs no attaching is not waited for", "pod/web", func(s *scene) {
			s.driver.Spec.AttachRequired, s.n1.Status.VolumesAttached, s.n1.Status.VolumesInUse = ptr.To(false), nil, nil
		}},
		{"the Node does not say yet that it uses it", "pod/web", func(s *scene) { s.n1.Status.VolumesInUse = nil }},
		{"the driver refuses", "pod/web", func(s *scene) {
			s.warn("uid-web", volume.ReasonFailedMount, failed+"Internal desc = bad superblock")
			e := s.all.Warnings[0]
			e.Count, e.LastTimestamp = 7, metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
			s.warn("uid-web", volume.ReasonFailedMount,
				"Unable to attach or mount volumes: unmounted volumes=[data]: timed out waiting for the condition")
			s.warn("uid-else", volume.ReasonFailedMount, "of somebody else")
			s.warn("uid-web", "BackOff", "of something else")
		}},
		{"the driver has refused once", "pod/web", func(s *scene) { s.refused(1, at(1)) }},
		{"twice", "pod/web", func(s *scene) { s.refused(2, at(1)) }},
		{"nobody knows when", "pod/web", func(s *scene) { s.refused(2, metav1.Time{}) }},
		{"a claim that is not bound is not waited for here", "pod/web", func(s *scene) {
			s.claim.Spec.VolumeName, s.claim.Status.Phase = "", corev1.ClaimPending
		}},
		{"nor a volume that is no driver's", "pod/web", func(s *scene) { s.volume.Spec.CSI = nil }},
		{"the kubelet has waited, and says no more", "pod/web", func(s *scene) {
			for _, of := range []string{"[data old]", "[data]"} {
				s.warn("uid-web", volume.ReasonFailedMount,
					"Unable to attach or mount volumes: unmounted volumes="+of+": timed out waiting for the condition")
			}
		}},
		{"the driver finds the request wrong", "pod/web", func(s *scene) {
			s.warn("uid-web", volume.ReasonFailedMount, failed+"InvalidArgument desc = no such option")
		}},
		{"nobody serves the driver's socket", "pod/web", func(s *scene) {
			s.warn("uid-web", volume.ReasonFailedMount,
				failed+`Unavailable desc = connection error: desc = "transport: error while dialing: `+
					`dial unix /p/csi.sock: connect: connection refused"`)
		}},
		{"the driver hangs", "pod/web", func(s *scene) {
			s.warn("uid-web", volume.ReasonFailedMount, failed+"DeadlineExceeded desc = context deadline exceeded")
		}},
		{"the host is full", "pod/web", func(s *scene) {
			s.warn("uid-web", volume.ReasonFailedMount, failed+"Internal desc = mkdir: no space left on device")
		}},
		{"a block volume", "pod/web", func(s *scene) {
			s.warn("uid-web", "FailedMapVolume",
				`MapVolume.SetUpDevice failed for volume "v1" : rpc error: code = Internal desc = no such device`)
		}},
		{"a volume that is no claim's names a ConfigMap that is not there", "pod/web", func(s *scene) {
			s.pod.Spec.Volumes = append(s.pod.Spec.Volumes, corev1.Volume{Name: "conf"})
			s.warn("uid-web", volume.ReasonFailedMount,
				`MountVolume.SetUp failed for volume "conf" : configmap "settings" not found`)
		}},
		{"of a Pod with volumes of no driver", "pod/web", func(s *scene) {
			s.pod.Spec.Volumes = []corev1.Volume{{Name: "conf"}}
			s.warn("uid-web", volume.ReasonFailedMount, `MountVolume.SetUp failed for volume "conf" : code = DeadlineExceeded`)
		}},
		{"the driver of a volume that the Pod names itself hangs", "pod/web", func(s *scene) {
			s.pod.Spec.Volumes = []corev1.Volume{{Name: "x"}, {Name: "data"}}
			s.pod.Spec.Volumes[1].CSI = &corev1.CSIVolumeSource{Driver: driver}
			s.warn("uid-web", volume.ReasonFailedMount,
				`MountVolume.SetUp failed for volume "data" : rpc error: code = DeadlineExceeded desc = late`)
		}},
		{"nothing says which volume it is, and there is one", "pod/web", func(s *scene) {
			s.warn("uid-web", volume.ReasonFailedMount, "rpc error: code = DeadlineExceeded desc = late")
		}},
	}, nodeOfKubeletRows()...)
}

func nodeOfKubeletRows() []row {
	const failed = `AttachVolume.Attach failed for volume "v1" : rpc error: code = Internal desc = no such disk`
	return []row{
		{"the attach has failed, and has not since", "pod/web", func(s *scene) {
			s.warn("uid-web", volume.ReasonFailedAttach, failed)
		}},
		{"the attach fails, and there is no attachment", "pod/web", func(s *scene) {
			s.detached()
			s.warn("uid-web", volume.ReasonFailedAttach, failed)
		}},
		{"the attach fails, and there is an attachment", "pod/web", func(s *scene) {
			s.attachment.Status.Attached = false
			s.warn("uid-web", volume.ReasonFailedAttach, failed)
		}},
		{"the attach cannot be", "pod/web", func(s *scene) {
			s.detached()
			s.warn("uid-web", volume.ReasonFailedAttach, strings.Replace(failed, "Internal", "InvalidArgument", 1))
		}},
		{"another node is attached", "pod/web", func(s *scene) {
			s.attachment.Spec.NodeName = "n2"
			s.warn("uid-web", volume.ReasonFailedAttach, failed)
		}},
		{"another node has it", "pod/web", func(s *scene) {
			s.attachment.Spec.NodeName, s.n1.Status.VolumesAttached = "n2", nil
			s.warn("uid-web", volume.ReasonFailedAttach,
				`Multi-Attach error for volume "v1" Volume is already exclusively attached to one node `+
					`and can't be attached to another`)
			s.warn("uid-web", volume.ReasonFailedAttach,
				`Waiting for detach for volume "v1" Volume is already used by pod(s) other`)
		}},
		{"the driver is not registered on the node, whatever was told before", "pod/web", func(s *scene) {
			s.csi1.Spec.Drivers = nil
			s.warn("uid-web", volume.ReasonFailedMount,
				`MountVolume.MountDevice failed for volume "v1" : `+
					`driver name d.example.com not found in the list of registered CSI drivers`)
		}},
		{"the Pod of the driver is there", "pod/web", func(s *scene) { s.csi1.Spec.Drivers = nil; s.plugin("n1", "") }},
		{"the Pod of the driver does not run", "pod/web", func(s *scene) {
			s.csi1.Spec.Drivers = nil
			s.plugin("n1", "CrashLoopBackOff")
		}},
		{"that of another node tells nothing", "pod/web", func(s *scene) {
			s.csi1.Spec.Drivers = nil
			s.plugin("n2", "CrashLoopBackOff")
		}},
		{"a Pod that runs does without", "pod/web", func(s *scene) {
			s.csi1.Spec.Drivers = nil
			s.sandbox(corev1.ConditionTrue)
		}},
		{"being deleted, a container runs", "pod/web", func(s *scene) {
			s.runs()
			s.pod.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		}},
		{"being deleted, none runs any more", "pod/web", func(s *scene) {
			s.container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
			s.pod.DeletionTimestamp = now()
		}},
		{"being deleted, and the driver is gone", "pod/web", func(s *scene) {
			s.container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
			s.pod.DeletionTimestamp, s.csi1.Spec.Drivers = now(), nil
		}},
		{"a node without drivers, of which nobody needs one", "node/n1", func(s *scene) {
			s.all.Pods, s.all.Attachments, s.all.CSINodes = nil, nil, []*storagev1.CSINode{}
		}},
		{"a node with an in-tree volume that Kubernetes hands to a driver", "node/n1", func(s *scene) {
			s.volume.Spec.CSI = nil
			s.all.Pods = nil
		}},
		{"the same of a driver's own volume", "node/n1", func(s *scene) { s.all.Pods = nil }},
		{"the driver is gone that is to unmount it", "pvc/data", func(s *scene) {
			s.all.Pods, s.csi1.Spec.Drivers = nil, nil
		}},
		{"a node whose only driver was refused", "node/n1", func(s *scene) {
			s.all.CSINodes = nil
			s.warn("uid-n1", volume.ReasonRegistrationRefused,
				"the driver that registers at /r is not registered: Unavailable: not now")
		}},
	}
}

// refused has the kubelet have told so often of a mount that the driver refuses.
func (s *scene) refused(count int32, last metav1.Time) {
	s.warn("uid-web", volume.ReasonFailedMount,
		`MountVolume.SetUp failed for volume "v1" : rpc error: code = Internal desc = no`)
	s.all.Warnings[0].Count, s.all.Warnings[0].LastTimestamp = count, last
}

// plugin adds a Pod by which the driver is on a node, and another one beside it.
func (s *scene) plugin(node, waits string) {
	host := func(path string) corev1.Volume {
		return corev1.Volume{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}
	}
	for i, paths := range [][]string{{"/var/lib/kubelet/plugins/other"}, {"/dev", "/var/lib/kubelet/plugins/" + driver}} {
		p := pod(fmt.Sprintf("csi-%d", i), node)
		p.Spec.Volumes = []corev1.Volume{{Name: "conf"}}
		for _, path := range paths {
			p.Spec.Volumes = append(p.Spec.Volumes, host(path))
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "driver"}, {Name: "registrar"}}
		if waits != "" {
			p.Status.ContainerStatuses[1].State.Waiting = &corev1.ContainerStateWaiting{Reason: waits}
		}
		s.use(p)
	}
}

// kubelet has the node be a kubelet's, which has the volume and waits with the
// Pod's container for a reason.
func (s *scene) kubelet(reason string) {
	if reason == "" {
		reason = "ContainerCreating"
	}
	unique := corev1.UniqueVolumeName(volume.UniqueName(driver, "h1"))
	s.n1.Status.NodeInfo.KubeletVersion = "v1.37.1"
	s.n1.Status.VolumesAttached = []corev1.AttachedVolume{{Name: unique}}
	s.n1.Status.VolumesInUse = []corev1.UniqueVolumeName{unique}
	s.sandbox(corev1.ConditionFalse)
	s.container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}})
}

func (s *scene) runs() { s.container(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}) }

// waiting returns why the Pod's container waits.
func (s *scene) waiting() *corev1.ContainerStateWaiting {
	return s.pod.Status.ContainerStatuses[0].State.Waiting
}

func (s *scene) container(state corev1.ContainerState) {
	s.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: state}}
}

// sandbox has the kubelet say whether the Pod's sandbox is there.
func (s *scene) sandbox(is corev1.ConditionStatus) {
	s.pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReadyToStartContainers, Status: is},
	}
}
