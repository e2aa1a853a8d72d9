package why_test

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/volume"
)

const attachers = "external-attacher-leader-d-example-com"

// TestLeases: who has to act next, and by its lease does not live.
func TestLeases(t *testing.T) {
	equal(t, "leases.txt", written(t, leaseRows(), func(s *scene) {
		s.kubelet("")
		s.attachment.Status.Attached, s.attachment.CreationTimestamp = false, at(0)
		s.all.Now = at(10).Time
		// The API server's own.
		s.lease("kube-system", "apiserver-x", "x", 3600, 0)
	}))
}

func leaseRows() []row {
	const minute = time.Minute
	return append([]row{
		{"there is no lease", "pvc/data", func(s *scene) {
			s.attachment.CreationTimestamp = metav1.Time{Time: at(9).Add(time.Second)}
		}},
		{"and no attacher has taken it up", "pvc/data", func(s *scene) { s.attachment.CreationTimestamp = at(9) }},
		{"it is that of a control plane in one process", "pvc/data", func(s *scene) {
			s.n1.Annotations = map[string]string{volume.AnnControlPlane: "yes"}
		}},
		{"one has", "pvc/data", func(s *scene) { s.attachment.Finalizers = []string{volume.AttacherFinalizer(driver)} }},
		{"the attacher lives", "pvc/data", func(s *scene) { s.lease("storage", attachers, "csi-0", 15, 15*time.Second) }},
		{"the attacher is dead", "pvc/data", func(s *scene) { s.lease("storage", attachers, "csi-0", 15, 16*time.Second) }},
		{"a longer lease lasts longer", "pvc/data", func(s *scene) { s.lease("storage", attachers, "csi-0", 137, 2*minute) }},
		{"the attacher has ended well, just now", "pvc/data", func(s *scene) {
			s.lease("storage", attachers, "", 1, 15*time.Second)
		}},
		{"a while ago", "pvc/data", func(s *scene) { s.lease("storage", attachers, "", 1, 5*minute) }},
		{"the lease of an earlier installation is left", "pvc/data", func(s *scene) {
			s.lease("old", attachers, "csi-9", 15, 9*minute)
			s.lease("storage", attachers, "csi-0", 15, 0)
			s.lease("older", attachers, "csi-8", 15, 10*minute)
		}},
		{"a node of that name is none", "pvc/data", func(s *scene) {
			s.attachment.Finalizers = []string{volume.AttacherFinalizer(driver)}
			s.lease("kube-node-lease", attachers, attachers, 40, 9*minute)
		}},
		{"a lease that nobody has ever renewed", "pvc/data", func(s *scene) {
			s.lease("storage", attachers, "csi-0", 15, 9*minute)
			s.all.Leases[1].Spec.RenewTime = nil
		}},
		{"nobody waits for a dead attacher", "pvc/data", func(s *scene) {
			s.lease("storage", attachers, "csi-0", 15, 9*minute)
			s.attachment.Status.Attached = true
			s.sandbox(corev1.ConditionTrue)
		}},
		{"the clock here is wrong", "pvc/data", func(s *scene) {
			s.lease("storage", attachers, "csi-0", 15, 10*time.Second)
			s.all.Now = s.all.Now.Add(time.Hour)
		}},
		{"or slow", "pvc/data", func(s *scene) {
			s.lease("storage", attachers, "csi-0", 15, minute)
			s.all.Now = s.all.Now.Add(-time.Hour)
		}},
		{"leases may not be read", "pvc/data", func(s *scene) { s.all.Leases, s.all.LeasesHidden = nil, true }},
		{"nor are they missed for who has none", "pvc/data", func(s *scene) {
			s.late()
			s.all.Leases, s.all.LeasesHidden = nil, true
		}},
		{"nor where the cause is known", "pvc/data", func(s *scene) {
			s.all.Leases, s.all.LeasesHidden = nil, true
			s.attachment.Status.AttachError = &storagev1.VolumeError{Message: "Internal: no"}
		}},
		{"an attacher that has told why needs no finalizer", "pvc/data", func(s *scene) {
			s.attachment.Status.AttachError = &storagev1.VolumeError{Message: "Internal: no"}
		}},
		{"another attachment is untouched", "pvc/data", func(s *scene) {
			s.attachment.Finalizers = []string{volume.AttacherFinalizer(driver)}
			other := attachment("n2")
			other.CreationTimestamp = at(0)
			s.all.Attachments = append(s.all.Attachments, other)
			s.volume.Spec.AccessModes = nil
		}},
		{"the attacher is dead that detaches", "volumeattachment/a1", func(s *scene) {
			s.all.Pods = nil
			s.detaching()
			s.lease("storage", attachers, "csi-0", 15, 9*minute)
		}},
	}, otherLeaseRows()...)
}

// otherLeaseRows are of others than attachers.
func otherLeaseRows() []row {
	const long = 9 * time.Minute
	return []row{
		{"the provisioner is dead", "pvc/data", func(s *scene) {
			s.unbound()
			s.lease("storage", "d-example-com", "csi-0", 15, long)
		}},
		{"the provisioner lives", "pvc/data", func(s *scene) {
			s.unbound()
			s.lease("storage", "d-example-com", "csi-0", 15, 0)
		}},
		{"the volume is not deleted", "pv/v1", func(s *scene) {
			s.released()
			s.detached()
			s.lease("storage", "d-example-com", "csi-0", 15, long)
		}},
		{"the resizer is dead", "pvc/data", func(s *scene) {
			s.attachment.Status.Attached = true
			s.sandbox(corev1.ConditionTrue)
			s.wants("2Gi")
			s.lease("storage", "external-resizer-d-example-com", "csi-0", 15, long)
		}},
		{"kube-controller-manager is dead", "pvc/data", func(s *scene) { s.detached(); s.controllersDie() }},
		{"for the Pod, too: that is told once", "pvc/data", func(s *scene) {
			s.detached()
			s.n1.Status.VolumesAttached = nil
			s.controllersDie()
		}},
		{"another lease of that name is not its", "pvc/data", func(s *scene) {
			s.detached()
			s.lease("default", "kube-controller-manager", "m", 15, long)
		}},
		{"the scheduler is dead", "pod/web", func(s *scene) {
			s.detached()
			s.pod.Spec.NodeName = ""
			s.lease("kube-system", "kube-scheduler", "m_2", 15, long)
		}},
		{"the kubelet is dead, and nobody has marked the node yet", "pod/web", func(s *scene) {
			s.attachment.Status.Attached = true
			s.lease("kube-node-lease", "n1", "n1", 40, time.Minute)
			s.lease("kube-node-lease", "n2", "n2", 40, 0)
		}},
		{"the kubelet lives", "pod/web", func(s *scene) {
			s.attachment.Status.Attached = true
			s.lease("kube-node-lease", "n1", "n1", 40, 40*time.Second)
		}},
		{"one that is dead for two steps is told once", "pod/web", func(s *scene) {
			s.attachment.Status.Attached, s.n1.Status.VolumesAttached = true, nil
			second := s.claim.DeepCopy()
			second.Name, second.Spec.VolumeName, second.Status.Phase, second.UID = "more", "v9", corev1.ClaimPending, "uid-more"
			v := s.volume.DeepCopy()
			v.Name, v.Spec.ClaimRef = "v9", nil
			s.all.Claims, s.all.Volumes = append(s.all.Claims, second), append(s.all.Volumes, v)
			s.pod.Spec.Volumes = append(s.pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "more"},
			}})
			s.controllersDie()
		}},
	}
}

func (s *scene) controllersDie() {
	s.lease("kube-system", "kube-controller-manager", "m_1", 15, 9*time.Minute)
}

// lease adds one that was renewed some time ago.
func (s *scene) lease(ns, name, holder string, seconds int32, age time.Duration) {
	s.all.Leases = append(s.all.Leases, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(holder), LeaseDurationSeconds: &seconds,
			RenewTime: &metav1.MicroTime{Time: s.all.Now.Add(-age)},
		},
	})
}

// TestDeadControllersAreOneCause: whatever waits for the programs of a driver, the
// driver is the cause; and those of the control plane are theirs.
func TestDeadControllersAreOneCause(t *testing.T) {
	s := newScene()
	s.kubelet("")
	s.all.Now = at(10).Time
	s.lease("kube-system", "apiserver-x", "x", 3600, 0)
	s.twin(corev1.PodPending)
	for _, a := range s.all.Attachments {
		a.Status = storagev1.VolumeAttachmentStatus{}
	}
	fresh := s.claim.DeepCopy()
	fresh.Name, fresh.UID, fresh.Spec.VolumeName, fresh.Status.Phase = "fresh", "uid-fresh", "", corev1.ClaimPending
	fresh.Annotations = nil
	s.all.Claims = append(s.all.Claims, fresh)
	s.use(pod("web9", ""))
	s.lease("storage", attachers, "csi-0", 15, time.Minute)
	s.lease("storage", "d-example-com", "csi-0", 15, time.Minute)
	s.lease("kube-system", "kube-scheduler", "m_2", 15, 9*time.Minute)
	var b strings.Builder
	if err := why.RenderCauses(&b, why.Causes(s.all), true); err != nil {
		t.Fatal(err)
	}
	equal(t, "dead-controllers.txt", b.String())
}
