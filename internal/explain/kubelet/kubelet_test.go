package kubelet_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/volume"
)

// TestKubelets: what is reported about Pods and nodes whose agent is a kubelet, which
// shows its mounts only by later steps and by events.
func TestKubelets(t *testing.T) {
	whytest.Equal(t, "kubelets.txt", whytest.Written(t, kubeletRows(), func(s *scene) { s.Kubelet("") }))
}

func kubeletRows() []row {
	const failed = `MountVolume.MountDevice failed for volume "v1" : rpc error: code = `
	const gone = ": transport endpoint is not connected"
	return append([]row{
		{"its containers run", "pvc/data", func(s *scene) { s.Runs() }},
		{"they run, and events of failures are left", "pvc/data", func(s *scene) {
			s.Warn("uid-web", volume.ReasonFailedMount, failed+"Internal desc = bad superblock")
			s.Runs()
		}},
		{
			"its sandbox is there, its containers are not", "pvc/data",
			func(s *scene) { s.Sandbox(corev1.ConditionTrue) },
		},
		{"the same, and nothing else is told", "pod/web", func(s *scene) {
			s.Sandbox(corev1.ConditionTrue)
			s.Pod.Status.Conditions = s.Pod.Status.Conditions[1:]
		}},
		{"it is not, and nothing else is told, but a container of before", "pod/web", func(s *scene) {
			s.Pod.Status.Conditions = s.Pod.Status.Conditions[1:]
			s.Pod.Status.ContainerStatuses[0].ContainerID = "x://1"
		}},
		{"an image is not to be had", "pod/web", func(s *scene) { s.Kubelet("ImagePullBackOff") }},
		{"a container ends again and again", "pod/web", func(s *scene) {
			s.Kubelet("CrashLoopBackOff")
			s.Waiting().Message = "back-off 5m0s restarting failed container"
		}},
		{"a container lacks a Secret", "pod/web", func(s *scene) {
			s.Kubelet("CreateContainerConfigError")
			s.Waiting().Message = `secret "login" not found`
		}},
		{"a path in a volume cannot be had", "pod/web", func(s *scene) {
			s.Kubelet("CreateContainerConfigError")
			s.Waiting().Message = `failed to prepare subPath for volumeMount "data" of container "c"`
		}},
		{"the server of a mount is gone", "pod/web", func(s *scene) {
			s.Kubelet("CreateContainerError")
			s.Waiting().Message = `failed to stat "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v1/mount"` + gone
		}},
		{"the server of a mount is gone that is no driver's", "pod/web", func(s *scene) {
			s.Kubelet("CreateContainerError")
			s.Pod.Spec.Volumes = []corev1.Volume{{Name: "nfs"}}
			s.Waiting().Message = `failed to stat "/var/lib/kubelet/pods/u/volumes/kubernetes.io~nfs/v1"` + gone
		}},
		{"the network of the sandbox cannot be made", "pod/web", func(s *scene) {
			s.Warn("uid-web", volume.ReasonFailedMount, failed+"Internal desc = bad superblock")
			s.Warn("uid-web", "FailedCreatePodSandBox", "network: no address is left")
		}},
		{"the sandbox could not be made, and after that the mount failed", "pod/web", func(s *scene) {
			s.Warn("uid-web", "FailedCreatePodSandBox", "network: no address is left")
			s.Warn("uid-web", volume.ReasonFailedMount, failed+"Internal desc = bad superblock")
		}},
		{"an old kubelet has started a container that has ended", "pod/web", func(s *scene) {
			s.Pod.Status.Conditions = nil
			s.Pod.Status.ContainerStatuses[0].ContainerID = "x://1"
		}},
		{"an old kubelet has started none", "pod/web", func(s *scene) { s.Pod.Status.Conditions = nil }},
		{"the host was started anew, and the sandbox is not there yet", "pod/web", func(s *scene) {
			s.Pod.Status.Phase = corev1.PodRunning
			s.Pod.Status.ContainerStatuses[0].ContainerID = "x://1"
		}},
		{"an init container runs", "pod/web", func(s *scene) {
			s.Kubelet("PodInitializing")
			main := s.Pod.Status.ContainerStatuses
			s.Runs()
			s.Pod.Status.InitContainerStatuses, s.Pod.Status.ContainerStatuses = s.Pod.Status.ContainerStatuses, main
		}},
		{"the kubelet has not seen the Pod", "pod/web", func(s *scene) { s.Pod.Status = corev1.PodStatus{} }},
	}, unmountedRows()...)
}

// unmountedRows are of Pods whose volumes are not mounted.
func unmountedRows() []row {
	const failed = `MountVolume.MountDevice failed for volume "v1" : rpc error: code = `
	return append([]row{
		{"the kubelet is at it", "pod/web", func(s *scene) {
			s.Pod.Status.StartTime = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		}},
		{"the Node does not have it attached yet", "pod/web", func(s *scene) { s.N1.Status.VolumesAttached = nil }},
		{"a driver that needs no attaching is not waited for", "pod/web", func(s *scene) {
			s.Driver.Spec.AttachRequired, s.N1.Status.VolumesAttached, s.N1.Status.VolumesInUse = ptr.To(false), nil, nil
		}},
		{"the Node does not say yet that it uses it", "pod/web", func(s *scene) { s.N1.Status.VolumesInUse = nil }},
		{"the driver refuses", "pod/web", func(s *scene) {
			s.Warn("uid-web", volume.ReasonFailedMount, failed+"Internal desc = bad superblock")
			e := s.All.Warnings[0]
			e.Count, e.LastTimestamp = 7, metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
			s.Warn("uid-web", volume.ReasonFailedMount,
				"Unable to attach or mount volumes: unmounted volumes=[data]: timed out waiting for the condition")
			s.Warn("uid-else", volume.ReasonFailedMount, "of somebody else")
			s.Warn("uid-web", "BackOff", "of something else")
		}},
		{"the driver has refused once", "pod/web", func(s *scene) { s.Refused(1, whytest.At(1)) }},
		{"a claim that is not bound is not waited for here", "pod/web", func(s *scene) {
			s.Claim.Spec.VolumeName, s.Claim.Status.Phase = "", corev1.ClaimPending
		}},
		{"nor a volume that is no driver's", "pod/web", func(s *scene) { s.Volume.Spec.CSI = nil }},
		{"the kubelet has waited, and says no more", "pod/web", func(s *scene) {
			for _, of := range []string{"[data old]", "[data]"} {
				s.Warn("uid-web", volume.ReasonFailedMount,
					"Unable to attach or mount volumes: unmounted volumes="+of+": timed out waiting for the condition")
			}
		}},
		{"the driver finds the request wrong", "pod/web", func(s *scene) {
			s.Warn("uid-web", volume.ReasonFailedMount, failed+"InvalidArgument desc = no such option")
		}},
		{"nobody serves the driver's socket", "pod/web", func(s *scene) {
			s.Warn("uid-web", volume.ReasonFailedMount,
				failed+`Unavailable desc = connection error: desc = "transport: error while dialing: `+
					`dial unix /p/csi.sock: connect: connection refused"`)
		}},
		{"the driver hangs", "pod/web", func(s *scene) {
			s.Warn("uid-web", volume.ReasonFailedMount, failed+"DeadlineExceeded desc = context deadline exceeded")
		}},
		{"the host is full", "pod/web", func(s *scene) {
			s.Warn("uid-web", volume.ReasonFailedMount, failed+"Internal desc = mkdir: no space left on device")
		}},
		{"a block volume", "pod/web", func(s *scene) {
			s.Warn("uid-web", "FailedMapVolume",
				`MapVolume.SetUpDevice failed for volume "v1" : rpc error: code = Internal desc = no such device`)
		}},
		{"a volume that is no claim's names a ConfigMap that is not there", "pod/web", func(s *scene) {
			s.Pod.Spec.Volumes = append(s.Pod.Spec.Volumes, corev1.Volume{Name: "conf"})
			s.Warn("uid-web", volume.ReasonFailedMount,
				`MountVolume.SetUp failed for volume "conf" : configmap "settings" not found`)
		}},
		{"of a Pod with volumes of no driver", "pod/web", func(s *scene) {
			s.Pod.Spec.Volumes = []corev1.Volume{{Name: "conf"}}
			s.Warn("uid-web", volume.ReasonFailedMount, `MountVolume.SetUp failed for volume "conf" : code = DeadlineExceeded`)
		}},
		{"the driver of a volume that the Pod names itself hangs", "pod/web", func(s *scene) {
			s.Pod.Spec.Volumes = []corev1.Volume{{Name: "x"}, {Name: "data"}}
			s.Pod.Spec.Volumes[1].CSI = &corev1.CSIVolumeSource{Driver: whytest.Driver}
			s.Warn("uid-web", volume.ReasonFailedMount,
				`MountVolume.SetUp failed for volume "data" : rpc error: code = DeadlineExceeded desc = late`)
		}},
		{"nothing says which volume it is, and there is one", "pod/web", func(s *scene) {
			s.Warn("uid-web", volume.ReasonFailedMount, "rpc error: code = DeadlineExceeded desc = late")
		}},
	}, nodeOfKubeletRows()...)
}

func nodeOfKubeletRows() []row {
	const failed = `AttachVolume.Attach failed for volume "v1" : rpc error: code = Internal desc = no such disk`
	return []row{
		{"the attach has failed, and has not since", "pod/web", func(s *scene) {
			s.Warn("uid-web", volume.ReasonFailedAttach, failed)
		}},
		{"the attach fails, and there is no attachment", "pod/web", func(s *scene) {
			s.Detached()
			s.Warn("uid-web", volume.ReasonFailedAttach, failed)
		}},
		{"the attach fails, and there is an attachment", "pod/web", func(s *scene) {
			s.Attachment.Status.Attached = false
			s.Warn("uid-web", volume.ReasonFailedAttach, failed)
		}},
		{"the attach cannot be", "pod/web", func(s *scene) {
			s.Detached()
			s.Warn("uid-web", volume.ReasonFailedAttach, strings.Replace(failed, "Internal", "InvalidArgument", 1))
		}},
		{"another node is attached", "pod/web", func(s *scene) {
			s.Attachment.Name, s.Attachment.Spec.NodeName = whytest.Attachment("n2").Name, "n2"
			s.Warn("uid-web", volume.ReasonFailedAttach, failed)
		}},
		{"another node has it", "pod/web", func(s *scene) {
			s.Attachment.Name, s.Attachment.Spec.NodeName = whytest.Attachment("n2").Name, "n2"
			s.N1.Status.VolumesAttached = nil
			s.Warn("uid-web", volume.ReasonFailedAttach,
				`Multi-Attach error for volume "v1" Volume is already exclusively attached to one node `+
					`and can't be attached to another`)
			s.Warn("uid-web", volume.ReasonFailedAttach,
				`Waiting for detach for volume "v1" Volume is already used by pod(s) other`)
		}},
		{"the driver is not registered on the node, whatever was told before", "pod/web", func(s *scene) {
			s.CSI1.Spec.Drivers = nil
			s.Warn("uid-web", volume.ReasonFailedMount,
				`MountVolume.MountDevice failed for volume "v1" : `+
					`driver name d.example.com not found in the list of registered CSI drivers`)
		}},
		{"the Pod of the driver is there", "pod/web", func(s *scene) { s.CSI1.Spec.Drivers = nil; s.Plugin("n1", "") }},
		{"the Pod of the driver does not run", "pod/web", func(s *scene) {
			s.CSI1.Spec.Drivers = nil
			s.Plugin("n1", "CrashLoopBackOff")
		}},
		{"that of another node tells nothing", "pod/web", func(s *scene) {
			s.CSI1.Spec.Drivers = nil
			s.Plugin("n2", "CrashLoopBackOff")
		}},
		{"a Pod that runs does without", "pod/web", func(s *scene) {
			s.CSI1.Spec.Drivers = nil
			s.Sandbox(corev1.ConditionTrue)
		}},
		{"being deleted, a container runs", "pod/web", func(s *scene) {
			s.Runs()
			s.Pod.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		}},
		{"being deleted, none runs any more", "pod/web", func(s *scene) {
			s.Container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
			s.Pod.DeletionTimestamp = whytest.Now()
		}},
		{"being deleted, and the driver is gone", "pod/web", func(s *scene) {
			s.Container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
			s.Pod.DeletionTimestamp, s.CSI1.Spec.Drivers = whytest.Now(), nil
		}},
		{"a node without drivers, of which nobody needs one", "node/n1", func(s *scene) {
			s.All.Pods, s.All.Attachments, s.All.CSINodes = nil, nil, []*storagev1.CSINode{}
		}},
		{"a node with an in-tree volume that Kubernetes hands to a driver", "node/n1", func(s *scene) {
			s.Volume.Spec.CSI = nil
			s.All.Pods = nil
		}},
		{"the same of a driver's own volume", "node/n1", func(s *scene) { s.All.Pods = nil }},
		{"the driver is gone that is to unmount it", "pvc/data", func(s *scene) {
			s.All.Pods, s.CSI1.Spec.Drivers = nil, nil
		}},
		{"a node whose only driver was refused", "node/n1", func(s *scene) {
			s.All.CSINodes = nil
			s.Warn("uid-n1", volume.ReasonRegistrationRefused,
				"the driver that registers at /r is not registered: Unavailable: not now")
		}},
	}
}

// row is one scene and the object in question.
type row whytest.Row

type scene = whytest.Scene
