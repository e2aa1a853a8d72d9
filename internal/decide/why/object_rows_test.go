package why_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/volume"
)

func volumeRows() []row {
	return []row{
		{"a bound volume is explained with its claim", "pv/v1", func(*scene) {}},
		{"a volume that is free", "pv/v1", func(s *scene) {
			s.released()
			s.detached()
			s.volume.Status.Phase, s.volume.Spec.ClaimRef = corev1.VolumeAvailable, nil
		}},
		{"a volume that nobody has looked at", "pv/v1", func(s *scene) {
			s.released()
			s.detached()
			s.volume.Status.Phase = ""
		}},
		{"a bound volume that names no claim", "pv/v1", func(s *scene) { s.volume.Spec.ClaimRef = nil; s.detached() }},
		{"the claim is gone, the volume still attached", "pv/v1", (*scene).released},
		{"the claim is gone, the driver has enough to do", "pv/v1", func(s *scene) {
			s.released()
			s.detached()
			s.warn(s.volume.UID, volume.ReasonDriverBusy, "driver d.example.com works on as many calls to delete volumes as "+
				"may be under way at once; this one waits for its turn")
		}},
		{"the claim is gone, the driver deletes the volume", "pv/v1", func(s *scene) { s.released(); s.detached() }},
		{"the claim is gone and the data kept", "pv/v1", func(s *scene) {
			s.released()
			s.detached()
			s.volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}},
		{"the driver refuses to delete it", "pv/v1", func(s *scene) {
			s.released()
			s.detached()
			s.warn("uid-v1", volume.ReasonFailedDelete, "volume has snapshots")
		}},
		{"its driver has not registered", "pv/v1", func(s *scene) { s.released(); s.detached(); s.all.CSINodes = nil }},
		{"it is not a CSI driver's", "pv/v1", func(s *scene) {
			s.released()
			s.detached()
			s.volume.Spec.CSI, s.volume.Spec.NFS = nil, &corev1.NFSVolumeSource{}
		}},
		{"its object is being deleted and kept by the provisioner", "pv/v1", func(s *scene) {
			s.released()
			s.goes(volume.FinalizerProvisioner)
			s.volume.Status.Phase, s.volume.Spec.ClaimRef = corev1.VolumeAvailable, nil
		}},
		{"or by the attacher", "pv/v1", func(s *scene) {
			s.released()
			s.goes(volume.AttacherFinalizer(driver))
			s.volume.Status.Phase, s.volume.Spec.ClaimRef = corev1.VolumeAvailable, nil
		}},
		{"or by strangers", "pv/v1", func(s *scene) {
			s.released()
			s.detached()
			s.goes("example.com/a", "example.com/b")
			s.volume.Status.Phase, s.volume.Spec.ClaimRef = corev1.VolumeAvailable, nil
		}},
		{"it could not be reclaimed", "pv/v1", func(s *scene) {
			s.released()
			s.detached()
			s.volume.Status.Phase, s.volume.Status.Message = corev1.VolumeFailed, "recycling is not supported"
		}},
	}
}

func nodeRows() []row {
	return []row{
		{"a node that is well", "node/n1", func(s *scene) {
			s.n1.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "x"}}
			s.csi1.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(int32(32))}
		}},
		{"a node with a mount that nobody knows", "node/n1", func(s *scene) {
			s.warn(s.n1.UID, volume.ReasonMountUnknown,
				mount.Unknown([]string{"/r/pods/u/volumes/kubernetes.io~csi/v/mount"}).Message)
			s.next("user")
		}},
		{"a node without drivers", "node/n1", func(s *scene) { s.all.CSINodes = nil }},
		{"a node whose only driver was refused", "node/n1", func(s *scene) {
			s.all.CSINodes = nil
			s.warn("uid-n1", volume.ReasonRegistrationRefused,
				"the driver that registers at /r is not registered: Unavailable: not now")
		}},
		{"a node that is not ready, whoever is there", "node/n1", func(s *scene) {
			s.n1.Status.Conditions[0] = corev1.NodeCondition{
				Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown",
			}
		}},
		{"what is wrong with its attachments and Pods", "node/n1", func(s *scene) {
			s.detaching()
			s.mounted(corev1.ConditionFalse, string(volume.ReasonFailedMount), "bad superblock")
		}},
	}
}

func causeRows() []row {
	return []row{
		{"nothing waits", "", func(*scene) {}},
		{"the control plane is full", "", func(s *scene) {
			s.all.Full = &volume.Because{Reason: volume.ReasonDatabaseFull, Message: "the database is full", Next: "user"}
		}},
		{"one cause holds up several, in the order of how many", "", func(s *scene) {
			s.all.Classes = nil
			s.unbound()
			for i := range 3 {
				c := s.claim.DeepCopy()
				c.Name, c.UID = fmt.Sprintf("more%d", i), c.UID+"-more"
				s.all.Claims = append(s.all.Claims, c)
			}
			s.use(pod("web", ""))
			s.all.CSINodes = s.all.CSINodes[1:]
		}},
		{"a Pod that names a missing claim", "", func(s *scene) {
			s.all.Claims = nil
			s.released()
			s.use(pod("web", "n1"))
			s.detached()
		}},
		{"a volume that cannot be deleted", "", func(s *scene) {
			s.released()
			s.detached()
			s.warn("uid-v1", volume.ReasonFailedDelete, "volume has snapshots")
		}},
		{"what has no namespace may hold up several of them", "", func(s *scene) {
			s.unbound()
			s.all.Classes = nil
			c := s.claim.DeepCopy()
			c.ObjectMeta = metav1.ObjectMeta{Namespace: "other", Name: "data"}
			s.all.Claims = append(s.all.Claims, c)
		}},
		{"a node holds up its Pods", "", func(s *scene) {
			s.n1.Status.Conditions[0] = corev1.NodeCondition{
				Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown",
			}
		}},
		{"a Pod that has ended waits for nothing", "", func(s *scene) {
			s.pod.Status.Phase, s.all.Claims, s.all.Volumes, s.all.Attachments = corev1.PodSucceeded, nil, nil, nil
		}},
	}
}
