package why_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/decide/why/whytest"
	"volplane.dev/volplane/internal/volume"
)

// TestForce: when a volume is detached by force from a node that is not ready, as
// far as objects tell.
func TestForce(t *testing.T) {
	whytest.Equal(t, "force.txt", whytest.Written(t, forceRows(), (*scene).DeadNode))
}

func forceRows() []row {
	const multi = `Multi-Attach error for volume "v1" Volume is already `
	evicts := func(s *scene, seconds ...int64) {
		s.N1.Spec.Taints = []corev1.Taint{
			{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
			{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: ptr.To(whytest.At(5))},
		}
		for _, n := range seconds {
			s.Pod.Spec.Tolerations = append(s.Pod.Spec.Tolerations,
				corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, TolerationSeconds: &n})
		}
	}
	return []row{
		{"its Pod is there, and nothing drives it away", "pod/other", func(*scene) {}},
		{"its Pod is evicted after a time", "pod/other", func(s *scene) { evicts(s, 600, 300) }},
		{"at once", "pod/other", func(s *scene) { evicts(s) }},
		{"never", "pod/other", func(s *scene) {
			evicts(s)
			s.Pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}},
		{"after a time that nobody knows", "pod/other", func(s *scene) {
			evicts(s, 300)
			s.N1.Spec.Taints[1].TimeAdded = nil
		}},
		{"the first of two taints counts", "pod/other", func(s *scene) {
			evicts(s, 300)
			s.N1.Spec.Taints = append(s.N1.Spec.Taints,
				corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute,
					TimeAdded: ptr.To(whytest.At(1))})
		}},
		{"nobody ends its Pod", "pod/other", func(s *scene) { s.Pod.DeletionTimestamp = ptr.To(whytest.At(8)) }},
		{"its Pod has gone, nobody knows when", "pod/other", func(s *scene) { s.PodGone() }},
		{"its Pod had gone when another was told", "pod/other", func(s *scene) {
			s.PodGone()
			s.MultiAttach("uid-other", multi+"used by pod(s) web", whytest.At(1))
			s.MultiAttach("uid-else", multi+"exclusively attached to one node", whytest.At(2))
			s.MultiAttach("uid-other", `AttachVolume.Attach failed for volume "v1" : no`, whytest.At(3))
			s.MultiAttach("uid-other", multi+"exclusively attached to one node", metav1.Time{})
			s.MultiAttach("uid-other", multi+"used by 2 pod(s) in different namespaces", whytest.At(4))
			s.MultiAttach("uid-other", strings.Replace(multi, "v1", "v2", 1)+"exclusively attached to one node", whytest.At(5))
			s.MultiAttach("uid-other", multi+"exclusively attached to one node", whytest.At(10))
		}},
		{"the same, as newer controllers say it", "pod/other", func(s *scene) {
			s.PodGone()
			s.MultiAttach("uid-other",
				`Waiting for detach for volume "v1" Volume is already exclusively attached to one node, waiting on detach`,
				whytest.At(9))
		}},
		{"nor does the node use it: it is detached anyhow", "pod/other", func(s *scene) {
			s.PodGone()
			s.N1.Status.VolumesInUse = nil
		}},
		{"somebody has said that the host is off", "pod/other", func(s *scene) {
			s.PodGone()
			s.N1.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		}},
		{"it is being detached", "pod/other", func(s *scene) { s.PodGone(); s.Detaching() }},
		{"the Node is gone", "pod/other", func(s *scene) { s.PodGone(); s.All.Nodes = s.All.Nodes[1:] }},
		{"the node lives", "pod/other", func(s *scene) {
			s.N1.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}},
	}
}

// TestDeadDrivers: a driver that is not there is one cause, whatever waits for it.
func TestDeadDrivers(t *testing.T) {
	var b strings.Builder
	for _, r := range []row{
		{"missing on one node", "", func(s *scene) { s.CSI1.Spec.Drivers = nil }},
		{"missing on two", "", func(s *scene) { s.CSI1.Spec.Drivers = nil; s.Twin(corev1.PodPending) }},
		{"missing everywhere", "", func(s *scene) {
			s.All.CSINodes = nil
			s.Twin(corev1.PodPending)
			c := s.Claim.DeepCopy()
			c.Name, c.UID, c.Spec.VolumeName, c.Status.Phase = "new", "uid-new", "", corev1.ClaimPending
			c.Annotations = nil
			s.All.Claims = append(s.All.Claims, c)
		}},
		{"nobody serves its socket", "", func(s *scene) {
			s.Twin(corev1.PodPending)
			gone := `rpc error: code = Unavailable desc = connection error: desc = "transport: connection refused"`
			for _, a := range s.All.Attachments {
				a.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: gone}}
			}
			s.Warn("uid-web", volume.ReasonFailedMount, `MountVolume.MountDevice failed for volume "v1" : `+gone)
		}},
		{"one node's agent says so", "", func(s *scene) {
			s.Failed("publish", "NodePublishVolume by driver d.example.com: Unavailable: error reading from server: EOF",
				"node n1")
		}},
		{"it answers, and refuses: each volume is a cause", "", func(s *scene) {
			s.Twin(corev1.PodPending)
			for _, a := range s.All.Attachments {
				a.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "Internal: no such disk"}}
			}
		}},
	} {
		s := whytest.New()
		s.Kubelet("")
		r.Change(s)
		b.WriteString("# " + r.Name + "\n")
		if err := why.RenderCauses(&b, why.Causes(s.All), true); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	whytest.Equal(t, "dead-drivers.txt", b.String())
}

// TestDeadControllersAreOneCause: whatever waits for the programs of a driver, the
// driver is the cause; and those of the control plane are theirs.
func TestDeadControllersAreOneCause(t *testing.T) {
	s := whytest.New()
	s.Kubelet("")
	s.All.Now = whytest.At(10).Time
	s.Lease("kube-system", "apiserver-x", "x", 3600, 0)
	s.Twin(corev1.PodPending)
	for _, a := range s.All.Attachments {
		a.Status = storagev1.VolumeAttachmentStatus{}
	}
	fresh := s.Claim.DeepCopy()
	fresh.Name, fresh.UID, fresh.Spec.VolumeName, fresh.Status.Phase = "fresh", "uid-fresh", "", corev1.ClaimPending
	fresh.Annotations = nil
	s.All.Claims = append(s.All.Claims, fresh)
	s.Use(whytest.Pod("web9", ""))
	s.Lease("storage", "external-attacher-leader-d-example-com", "csi-0", 15, time.Minute)
	s.Lease("storage", "d-example-com", "csi-0", 15, time.Minute)
	s.Lease("kube-system", "kube-scheduler", "m_2", 15, 9*time.Minute)
	var b strings.Builder
	if err := why.RenderCauses(&b, why.Causes(s.All), true); err != nil {
		t.Fatal(err)
	}
	whytest.Equal(t, "dead-controllers.txt", b.String())
}
