package why_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/volume"
)

// TestForce: when a volume is detached by force from a node that is not ready, as
// far as objects tell.
func TestForce(t *testing.T) {
	equal(t, "force.txt", written(t, forceRows(), (*scene).deadNode))
}

func at(minute int) metav1.Time {
	return metav1.Time{Time: time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC)}
}

func forceRows() []row {
	const multi = `Multi-Attach error for volume "v1" Volume is already `
	evicts := func(s *scene, seconds ...int64) {
		s.n1.Spec.Taints = []corev1.Taint{
			{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
			{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: ptr.To(at(5))},
		}
		for _, n := range seconds {
			s.pod.Spec.Tolerations = append(s.pod.Spec.Tolerations,
				corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, TolerationSeconds: &n})
		}
	}
	return []row{
		{"its Pod is there, and nothing drives it away", "pod/other", func(*scene) {}},
		{"its Pod is evicted after a time", "pod/other", func(s *scene) { evicts(s, 600, 300) }},
		{"at once", "pod/other", func(s *scene) { evicts(s) }},
		{"never", "pod/other", func(s *scene) {
			evicts(s)
			s.pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}},
		{"after a time that nobody knows", "pod/other", func(s *scene) {
			evicts(s, 300)
			s.n1.Spec.Taints[1].TimeAdded = nil
		}},
		{"the first of two taints counts", "pod/other", func(s *scene) {
			evicts(s, 300)
			s.n1.Spec.Taints = append(s.n1.Spec.Taints,
				corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: ptr.To(at(1))})
		}},
		{"nobody ends its Pod", "pod/other", func(s *scene) { s.pod.DeletionTimestamp = ptr.To(at(8)) }},
		{"its Pod has gone, nobody knows when", "pod/other", func(s *scene) { s.podGone() }},
		{"its Pod had gone when another was told", "pod/other", func(s *scene) {
			s.podGone()
			s.multiAttach("uid-other", multi+"used by pod(s) web", at(1))
			s.multiAttach("uid-else", multi+"exclusively attached to one node", at(2))
			s.multiAttach("uid-other", `AttachVolume.Attach failed for volume "v1" : no`, at(3))
			s.multiAttach("uid-other", multi+"exclusively attached to one node", metav1.Time{})
			s.multiAttach("uid-other", multi+"used by 2 pod(s) in different namespaces", at(4))
			s.multiAttach("uid-other", strings.Replace(multi, "v1", "v2", 1)+"exclusively attached to one node", at(5))
			s.multiAttach("uid-other", multi+"exclusively attached to one node", at(10))
		}},
		{"the same, as newer controllers say it", "pod/other", func(s *scene) {
			s.podGone()
			s.multiAttach("uid-other",
				`Waiting for detach for volume "v1" Volume is already exclusively attached to one node, waiting on detach`, at(9))
		}},
		{"nor does the node use it: it is detached anyhow", "pod/other", func(s *scene) {
			s.podGone()
			s.n1.Status.VolumesInUse = nil
		}},
		{"somebody has said that the host is off", "pod/other", func(s *scene) {
			s.podGone()
			s.n1.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		}},
		{"it is being detached", "pod/other", func(s *scene) { s.podGone(); s.detaching() }},
		{"the Node is gone", "pod/other", func(s *scene) { s.podGone(); s.all.Nodes = s.all.Nodes[1:] }},
		{"the node lives", "pod/other", func(s *scene) {
			s.n1.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}},
	}
}

// deadNode has n1 die, which has the volume that a Pod of n2 waits for.
func (s *scene) deadNode() {
	s.kubelet("")
	s.runs()
	s.n1.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastTransitionTime: at(4),
	}}
	s.use(pod("other", "n2"))
}

func (s *scene) podGone() { s.all.Pods = s.all.Pods[1:] }

func (s *scene) multiAttach(uid types.UID, message string, first metav1.Time) {
	s.warn(uid, volume.ReasonFailedAttach, message)
	s.all.Warnings[len(s.all.Warnings)-1].FirstTimestamp = first
}

// TestDeadDrivers: a driver that is not there is one cause, whatever waits for it.
func TestDeadDrivers(t *testing.T) {
	var b strings.Builder
	for _, r := range []row{
		{"missing on one node", "", func(s *scene) { s.csi1.Spec.Drivers = nil }},
		{"missing on two", "", func(s *scene) { s.csi1.Spec.Drivers = nil; s.twin(corev1.PodPending) }},
		{"missing everywhere", "", func(s *scene) {
			s.all.CSINodes = nil
			s.twin(corev1.PodPending)
			c := s.claim.DeepCopy()
			c.Name, c.UID, c.Spec.VolumeName, c.Status.Phase = "new", "uid-new", "", corev1.ClaimPending
			c.Annotations = nil
			s.all.Claims = append(s.all.Claims, c)
		}},
		{"nobody serves its socket", "", func(s *scene) {
			s.twin(corev1.PodPending)
			gone := `rpc error: code = Unavailable desc = connection error: desc = "transport: connection refused"`
			for _, a := range s.all.Attachments {
				a.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: gone}}
			}
			s.warn("uid-web", volume.ReasonFailedMount, `MountVolume.MountDevice failed for volume "v1" : `+gone)
		}},
		{"one node's agent says so", "", func(s *scene) {
			s.failed("publish", "NodePublishVolume by driver d.example.com: Unavailable: error reading from server: EOF",
				"node n1")
		}},
		{"it answers, and refuses: each volume is a cause", "", func(s *scene) {
			s.twin(corev1.PodPending)
			for _, a := range s.all.Attachments {
				a.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "Internal: no such disk"}}
			}
		}},
	} {
		s := newScene()
		s.kubelet("")
		r.change(s)
		b.WriteString("# " + r.name + "\n")
		if err := why.RenderCauses(&b, why.Causes(s.all), true); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	equal(t, "dead-drivers.txt", b.String())
}

// twin adds the same for n2: claim data2, volume v2, its attachment and Pod web2.
func (s *scene) twin(phase corev1.PodPhase) {
	claim, v, p, a := s.claim.DeepCopy(), s.volume.DeepCopy(), s.pod.DeepCopy(), s.attachment.DeepCopy()
	claim.Name, claim.UID, claim.Spec.VolumeName = "data2", "uid-data2", "v2"
	v.Name, v.UID, v.Spec.CSI.VolumeHandle = "v2", "uid-v2", "h2"
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data2", UID: "uid-data2"}
	p.Name, p.UID, p.Spec.NodeName, p.Status.Phase = "web2", "uid-web2", "n2", phase
	p.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data2"}
	a.Name, a.Spec.NodeName, a.Spec.Source.PersistentVolumeName = "a2", "n2", ptr.To("v2")
	n2 := s.all.Nodes[1]
	n2.Status = *s.n1.Status.DeepCopy()
	s.all.Claims, s.all.Volumes = append(s.all.Claims, claim), append(s.all.Volumes, v)
	s.all.Pods, s.all.Attachments = append(s.all.Pods, p), append(s.all.Attachments, a)
	if len(s.csi1.Spec.Drivers) == 0 {
		s.all.CSINodes = nil
	}
}
