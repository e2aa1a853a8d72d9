package lease_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	decide "volplane.dev/volplane/internal/decide/lease"
	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/volume"
)

const attachers = "external-attacher-leader-d-example-com"

// TestLeases: who has to act next, and by its lease does not live.
func TestLeases(t *testing.T) {
	whytest.Equal(t, "leases.txt", whytest.Written(t, leaseRows(), func(s *scene) {
		s.Kubelet("")
		s.Attachment.Status.Attached, s.Attachment.CreationTimestamp = false, whytest.At(0)
		s.All.Now = whytest.At(10).Time
		// The API server's own.
		s.Lease("kube-system", "apiserver-x", "x", 3600, 0)
	}))
}

func leaseRows() []row {
	return append([]row{
		{"there is no lease", "pvc/data", func(s *scene) {
			s.Attachment.CreationTimestamp = metav1.Time{Time: whytest.At(9).Add(time.Second)}
		}},
		{
			"and no attacher has taken it up", "pvc/data",
			func(s *scene) { s.Attachment.CreationTimestamp = whytest.At(9) },
		},
		{"it is that of a control plane in one process", "pvc/data", func(s *scene) {
			s.N1.Annotations = map[string]string{volume.AnnControlPlane: "yes"}
			s.Called()
		}},
		{
			"one has", "pvc/data",
			func(s *scene) { s.Attachment.Finalizers = []string{volume.AttacherFinalizer(whytest.Driver)} },
		},
		{"the attacher lives", "pvc/data", func(s *scene) { s.Lease("storage", attachers, "csi-0", 15, 15*time.Second) }},
		{"the attacher is dead", "pvc/data", func(s *scene) { s.Lease("storage", attachers, "csi-0", 15, 16*time.Second) }},
		{"a longer one", "pvc/data", func(s *scene) { s.Lease("storage", attachers, "csi-0", 137, 2*time.Minute) }},
		{"a long lease whose holder has died", "pvc/data", func(s *scene) { long(s, "csi-0", "csi-0", time.Minute) }},
		{"whose holder lives", "pvc/data", func(s *scene) { long(s, "csi-0", "csi-0", 15*time.Second) }},
		{"whose mark is an earlier holder's", "pvc/data", func(s *scene) { long(s, "csi-1", "csi-0", time.Minute) }},
		{"whose first lease another process holds", "pvc/data", func(s *scene) { long(s, "csi-0", "csi-1", time.Minute) }},
		{"the attacher has ended well, just now", "pvc/data", func(s *scene) {
			s.Lease("storage", attachers, "", 1, 15*time.Second)
		}},
		{"a while ago", "pvc/data", func(s *scene) { s.Lease("storage", attachers, "", 1, 5*time.Minute) }},
		{"the lease of an earlier installation is left", "pvc/data", func(s *scene) {
			s.Lease("old", attachers, "csi-9", 15, 9*time.Minute)
			s.Lease("storage", attachers, "csi-0", 15, 0)
			s.Lease("older", attachers, "csi-8", 15, 10*time.Minute)
		}},
		{"a node of that name is none", "pvc/data", func(s *scene) {
			s.Attachment.Finalizers = []string{volume.AttacherFinalizer(whytest.Driver)}
			s.Lease("kube-node-lease", attachers, attachers, 40, 9*time.Minute)
		}},
		{"a lease that nobody has ever renewed", "pvc/data", func(s *scene) {
			s.Lease("storage", attachers, "csi-0", 15, 9*time.Minute)
			s.All.Leases[1].Spec.RenewTime = nil
		}},
		{"nobody waits for a dead attacher", "pvc/data", func(s *scene) {
			s.Lease("storage", attachers, "csi-0", 15, 9*time.Minute)
			s.Attachment.Status.Attached = true
			s.Sandbox(corev1.ConditionTrue)
		}},
		{"the clock here is wrong", "pvc/data", func(s *scene) {
			s.Lease("storage", attachers, "csi-0", 15, 10*time.Second)
			s.All.Now = s.All.Now.Add(time.Hour)
		}},
		{"or slow", "pvc/data", func(s *scene) {
			s.Lease("storage", attachers, "csi-0", 15, time.Minute)
			s.All.Now = s.All.Now.Add(-time.Hour)
		}},
		{"leases may not be read", "pvc/data", func(s *scene) { s.All.Leases, s.All.LeasesHidden = nil, true }},
		{"nor are they missed for who has none", "pvc/data", func(s *scene) {
			s.Late()
			s.All.Leases, s.All.LeasesHidden = nil, true
		}},
		{"nor where the cause is known", "pvc/data", func(s *scene) {
			s.All.Leases, s.All.LeasesHidden = nil, true
			s.Attachment.Status.AttachError = &storagev1.VolumeError{Message: "Internal: no"}
		}},
		{"an attacher that has told why needs no finalizer", "pvc/data", func(s *scene) {
			s.Attachment.Status.AttachError = &storagev1.VolumeError{Message: "Internal: no"}
		}},
		{"another attachment is untouched", "pvc/data", func(s *scene) {
			s.Attachment.Finalizers = []string{volume.AttacherFinalizer(whytest.Driver)}
			other := whytest.Attachment("n2")
			other.CreationTimestamp = whytest.At(0)
			s.All.Attachments = append(s.All.Attachments, other)
			s.Volume.Spec.AccessModes = nil
		}},
		{"the attacher is dead that detaches", "volumeattachment/a1", func(s *scene) {
			s.All.Pods = nil
			s.Detaching()
			s.Lease("storage", attachers, "csi-0", 15, 9*time.Minute)
		}},
	}, otherLeaseRows()...)
}

// long adds a long lease of an attacher, marked by a process as held with the first lease, and that, which its holder
// has renewed some time ago.
func long(s *scene, marked, first string, ago time.Duration) {
	s.Lease("storage", attachers, "csi-0", 120, time.Minute)
	s.All.Leases[len(s.All.Leases)-1].Annotations = map[string]string{
		volume.AnnHeldWith: decide.Mark("d-example-com", marked),
	}
	s.Lease("storage", "d-example-com", first, 15, ago)
}

// otherLeaseRows are of others than attachers.
func otherLeaseRows() []row {
	const ago = 9 * time.Minute
	return []row{
		{"the provisioner is dead", "pvc/data", func(s *scene) {
			s.Unbound()
			s.Lease("storage", "d-example-com", "csi-0", 15, ago)
		}},
		{"the provisioner lives", "pvc/data", func(s *scene) {
			s.Unbound()
			s.Lease("storage", "d-example-com", "csi-0", 15, 0)
		}},
		{"the volume is not deleted", "pv/v1", func(s *scene) {
			s.Released()
			s.Detached()
			s.Lease("storage", "d-example-com", "csi-0", 15, ago)
		}},
		{"the resizer is dead", "pvc/data", func(s *scene) {
			s.Attachment.Status.Attached = true
			s.Sandbox(corev1.ConditionTrue)
			s.Wants("2Gi")
			s.Lease("storage", "external-resizer-d-example-com", "csi-0", 15, ago)
		}},
		{"kube-controller-manager is dead", "pvc/data", func(s *scene) { s.Detached(); s.ControllersDie() }},
		{"for the Pod, too: that is told once", "pvc/data", func(s *scene) {
			s.Detached()
			s.N1.Status.VolumesAttached = nil
			s.ControllersDie()
		}},
		{"another lease of that name is not its", "pvc/data", func(s *scene) {
			s.Detached()
			s.Lease("default", "kube-controller-manager", "m", 15, ago)
		}},
		{"the scheduler is dead", "pod/web", func(s *scene) {
			s.Detached()
			s.Pod.Spec.NodeName = ""
			s.Lease("kube-system", "kube-scheduler", "m_2", 15, ago)
		}},
		{"the kubelet is dead, and nobody has marked the node yet", "pod/web", func(s *scene) {
			s.Attachment.Status.Attached = true
			s.Lease("kube-node-lease", "n1", "n1", 40, time.Minute)
			s.Lease("kube-node-lease", "n2", "n2", 40, 0)
		}},
		{"the kubelet lives", "pod/web", func(s *scene) {
			s.Attachment.Status.Attached = true
			s.Lease("kube-node-lease", "n1", "n1", 40, 40*time.Second)
		}},
		{"one that is dead for two steps is told once", "pod/web", func(s *scene) {
			s.Attachment.Status.Attached, s.N1.Status.VolumesAttached = true, nil
			second := s.Claim.DeepCopy()
			second.Name, second.Spec.VolumeName, second.Status.Phase, second.UID = "more", "v9", corev1.ClaimPending, "uid-more"
			v := s.Volume.DeepCopy()
			v.Name, v.Spec.ClaimRef = "v9", nil
			s.All.Claims, s.All.Volumes = append(s.All.Claims, second), append(s.All.Volumes, v)
			s.Pod.Spec.Volumes = append(s.Pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "more"},
			}})
			s.ControllersDie()
		}},
	}
}

// row is one scene and the object in question.
type row whytest.Row

type scene = whytest.Scene
