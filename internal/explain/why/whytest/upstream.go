package whytest

import (
	"cmp"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// Refused adds the kubelet's event, with a count, about a mount that the driver refuses.
func (s *Scene) Refused(count int32, last metav1.Time) {
	s.Warn("uid-web", volume.ReasonFailedMount,
		`MountVolume.SetUp failed for volume "v1" : rpc error: code = Internal desc = no`)
	s.All.Warnings[0].Count, s.All.Warnings[0].LastTimestamp = count, last
}

// Plugin adds a Pod by which the driver is on a node, and another one beside it.
func (s *Scene) Plugin(node, waits string) {
	host := func(path string) corev1.Volume {
		return corev1.Volume{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}
	}
	for i, paths := range [][]string{{"/var/lib/kubelet/plugins/other"}, {"/dev", "/var/lib/kubelet/plugins/" + Driver}} {
		p := Pod(fmt.Sprintf("csi-%d", i), node)
		p.Spec.Volumes = []corev1.Volume{{Name: "conf"}}
		for _, path := range paths {
			p.Spec.Volumes = append(p.Spec.Volumes, host(path))
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "driver"}, {Name: "registrar"}}
		if waits != "" {
			p.Status.ContainerStatuses[1].State.Waiting = &corev1.ContainerStateWaiting{Reason: waits}
		}
		s.Use(p)
	}
}

// Kubelet has the node be a kubelet's, which has the volume and waits with the Pod's container for a reason.
func (s *Scene) Kubelet(reason string) {
	reason = cmp.Or(reason, "ContainerCreating")
	unique := corev1.UniqueVolumeName(volume.UniqueName(Driver, "h1"))
	s.N1.Status.NodeInfo.KubeletVersion = "v1.37.1"
	s.N1.Status.VolumesAttached = []corev1.AttachedVolume{{Name: unique}}
	s.N1.Status.VolumesInUse = []corev1.UniqueVolumeName{unique}
	s.Sandbox(corev1.ConditionFalse)
	s.Container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}})
}

// Runs has the Pod run.
func (s *Scene) Runs() { s.Container(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}) }

// Waiting returns why the Pod's container waits.
func (s *Scene) Waiting() *corev1.ContainerStateWaiting {
	return s.Pod.Status.ContainerStatuses[0].State.Waiting
}

// Container has the Pod have one container in a state.
func (s *Scene) Container(state corev1.ContainerState) {
	s.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: state}}
}

// Sandbox has the kubelet report whether the Pod's sandbox exists.
func (s *Scene) Sandbox(is corev1.ConditionStatus) {
	s.Pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReadyToStartContainers, Status: is},
	}
}

// ControllersDie has the lease of the controllers be old.
func (s *Scene) ControllersDie() {
	s.Lease("kube-system", "kube-controller-manager", "m_1", 15, 9*time.Minute)
}

// Lease adds one that was renewed some time ago.
func (s *Scene) Lease(ns, name, holder string, seconds int32, age time.Duration) {
	s.All.Leases = append(s.All.Leases, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(holder), LeaseDurationSeconds: &seconds,
			RenewTime: &metav1.MicroTime{Time: s.All.Now.Add(-age)},
		},
	})
}

// At returns a time.
func At(minute int) metav1.Time {
	return metav1.Time{Time: time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC)}
}

// DeadNode has n1 die, which has the volume that a Pod of n2 waits for.
func (s *Scene) DeadNode() {
	s.Kubelet("")
	s.Runs()
	s.N1.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastTransitionTime: At(4),
	}}
	s.Use(Pod("other", "n2"))
}

// PodGone has the first Pod be gone.
func (s *Scene) PodGone() { s.All.Pods = s.All.Pods[1:] }

// MultiAttach adds the event about a Pod's volume that is attached to another node.
func (s *Scene) MultiAttach(uid types.UID, message string, first metav1.Time) {
	s.Warn(uid, volume.ReasonFailedAttach, message)
	s.All.Warnings[len(s.All.Warnings)-1].FirstTimestamp = first
}

// Twin adds the same for n2: claim data2, volume v2, its attachment and Pod web2.
func (s *Scene) Twin(phase corev1.PodPhase) {
	claim, v, p, a := s.Claim.DeepCopy(), s.Volume.DeepCopy(), s.Pod.DeepCopy(), s.Attachment.DeepCopy()
	claim.Name, claim.UID, claim.Spec.VolumeName = "data2", "uid-data2", "v2"
	v.Name, v.UID, v.Spec.CSI.VolumeHandle = "v2", "uid-v2", "h2"
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data2", UID: "uid-data2"}
	p.Name, p.UID, p.Spec.NodeName, p.Status.Phase = "web2", "uid-web2", "n2", phase
	p.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data2"}
	a.Name, a.Spec.NodeName, a.Spec.Source.PersistentVolumeName = "a2", "n2", ptr.To("v2")
	n2 := s.All.Nodes[1]
	n2.Status = *s.N1.Status.DeepCopy()
	s.All.Claims, s.All.Volumes = append(s.All.Claims, claim), append(s.All.Volumes, v)
	s.All.Pods, s.All.Attachments = append(s.All.Pods, p), append(s.All.Attachments, a)
	if len(s.CSI1.Spec.Drivers) == 0 {
		s.All.CSINodes = nil
	}
}
