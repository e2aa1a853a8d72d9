package whytest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/volume"
)

// VolumeRows are volumes without a claim.
func VolumeRows() []Row {
	return append([]Row{
		{"a bound volume is explained with its claim", "pv/v1", func(*Scene) {}},
		{"a volume that is free", "pv/v1", func(s *Scene) {
			s.Released()
			s.Detached()
			s.Volume.Status.Phase, s.Volume.Spec.ClaimRef = corev1.VolumeAvailable, nil
		}},
		{"a volume that nobody has looked at", "pv/v1", func(s *Scene) {
			s.Released()
			s.Detached()
			s.Volume.Status.Phase = ""
		}},
		{"a bound volume that names no claim", "pv/v1", func(s *Scene) { s.Volume.Spec.ClaimRef = nil; s.Detached() }},
		{"the claim is gone, the volume still attached", "pv/v1", (*Scene).Released},
		{"the claim is gone, and another volume with the handle is kept", "pv/v1", func(s *Scene) {
			s.SameHandle()
			s.Released()
			s.Detached()
		}},
		{"the claim is gone, the driver has enough to do", "pv/v1", func(s *Scene) {
			s.Released()
			s.Detached()
			s.Warn(s.Volume.UID, volume.ReasonDriverBusy, "driver d.example.com has reached its limit of concurrent delete "+
				"calls; waiting for a slot")
		}},
		{"the claim is gone, the driver deletes the volume", "pv/v1", func(s *Scene) { s.Released(); s.Detached() }},
		{"the claim is gone and the data kept", "pv/v1", func(s *Scene) {
			s.Released()
			s.Detached()
			s.Volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}},
		{"the driver refuses to delete it", "pv/v1", func(s *Scene) {
			s.Released()
			s.Detached()
			s.Warn("uid-v1", volume.ReasonFailedDelete, "volume has snapshots")
		}},
		{"its driver has not registered", "pv/v1", func(s *Scene) { s.Released(); s.Detached(); s.All.CSINodes = nil }},
		{"it is not a CSI driver's", "pv/v1", func(s *Scene) {
			s.Released()
			s.Detached()
			s.Volume.Spec.CSI, s.Volume.Spec.NFS = nil, &corev1.NFSVolumeSource{}
		}},
		{"its object is being deleted and kept by the provisioner", "pv/v1", func(s *Scene) {
			s.Released()
			s.Goes(volume.FinalizerProvisioner)
			s.Volume.Status.Phase, s.Volume.Spec.ClaimRef = corev1.VolumeAvailable, nil
		}},
		{"or by the attacher", "pv/v1", func(s *Scene) {
			s.Released()
			s.Goes(volume.AttacherFinalizer(Driver))
			s.Volume.Status.Phase, s.Volume.Spec.ClaimRef = corev1.VolumeAvailable, nil
		}},
		{"or by the attacher, whose attachment a stranger keeps", "pv/v1", func(s *Scene) {
			s.Released()
			s.Goes(volume.AttacherFinalizer(Driver))
			s.Volume.Status.Phase, s.Volume.Spec.ClaimRef = corev1.VolumeAvailable, nil
			s.Detaching()
			s.Attachment.Finalizers = []string{"example.com/keep"}
		}},
		{"or by strangers", "pv/v1", func(s *Scene) {
			s.Released()
			s.Detached()
			s.Goes("example.com/a", "example.com/b")
			s.Volume.Status.Phase, s.Volume.Spec.ClaimRef = corev1.VolumeAvailable, nil
		}},
		{"it could not be reclaimed", "pv/v1", func(s *Scene) {
			s.Released()
			s.Detached()
			s.Volume.Status.Phase, s.Volume.Status.Message = corev1.VolumeFailed, "recycling is not supported"
		}},
	}, lostRows()...)
}

// lostRows are volumes that were lost with their node.
func lostRows() []Row {
	return []Row{
		{"a volume that was lost with its node", "pvc/data", func(s *Scene) {
			s.GivenUp()
			s.Detached()
			s.All.Pods = nil
		}},
		{"a volume that was lost with its node, and a Pod wants it", "pvc/data", func(s *Scene) {
			s.GivenUp()
			s.Detached()
			s.All.Pods[0].Spec.NodeName = ""
		}},
		{"a volume that was lost with its node, and names no claim", "pv/v1", func(s *Scene) {
			s.GivenUp()
			s.Detached()
			s.Volume.Spec.ClaimRef, s.Volume.Status.Phase = nil, corev1.VolumeAvailable
		}},
	}
}

// NodeRows are nodes.
func NodeRows() []Row {
	return []Row{
		{"a node that is well", "node/n1", func(s *Scene) {
			s.N1.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "x"}}
			s.CSI1.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(int32(32))}
		}},
		{"a node from which a storage is not well", "node/n1", func(s *Scene) {
			s.StorageIll(corev1.PersistentVolumeBlock)
		}},
		{"a node with a mount that nobody knows", "node/n1", func(s *Scene) {
			s.Warn(s.N1.UID, volume.ReasonMountUnknown,
				mount.UnknownMounts([]string{"/r/pods/u/volumes/kubernetes.io~csi/v/mount"}).Message)
			s.Next(volume.User())
		}},
		{"a node whose agent cannot read a record", "node/n1", func(s *Scene) {
			s.Warn(s.N1.UID, volume.ReasonJournalTorn, mount.RecordUnreadable("/r/journal/quarantine/x.json.0").Message)
			s.Next(volume.User())
		}},
		{"a node without drivers", "node/n1", func(s *Scene) { s.All.CSINodes = nil }},
		{"a node whose only driver was refused", "node/n1", func(s *Scene) {
			s.All.CSINodes = nil
			s.Warn("uid-n1", volume.ReasonRegistrationRefused,
				"the driver that registers at /r is not registered: Unavailable: not now")
		}},
		{"a node that a driver cannot tell from another one", "node/n1", func(s *Scene) {
			twin := CSINode("n2")
			twin.Spec.Drivers[0].NodeID = s.CSI1.Spec.Drivers[0].NodeID
			s.All.CSINodes = append(s.All.CSINodes[:1:1], twin)
		}},
		{"two such nodes, of a driver that does not attach", "node/n1", func(s *Scene) {
			twin := CSINode("n2")
			twin.Spec.Drivers[0].NodeID = s.CSI1.Spec.Drivers[0].NodeID
			s.All.CSINodes, s.Driver.Spec.AttachRequired = append(s.All.CSINodes[:1:1], twin), ptr.To(false)
		}},
		{"a node that is not ready, whoever is there", "node/n1", func(s *Scene) {
			s.N1.Status.Conditions[0] = corev1.NodeCondition{
				Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown",
			}
		}},
		{"what is wrong with its attachments and Pods", "node/n1", func(s *Scene) {
			s.Detaching()
			s.Mounted(corev1.ConditionFalse, string(volume.ReasonFailedMount), "bad superblock")
		}},
	}
}

// CauseRows are what holds up several objects.
func CauseRows() []Row {
	return []Row{
		{"nothing waits", "", func(*Scene) {}},
		{"a driver that its node refused", "", func(s *Scene) {
			metav1.SetMetaDataAnnotation(&s.N1.ObjectMeta, volume.AnnRefused, `{"x.example.com":"it was not registered: no answer"}`)
		}},
		{"the control plane is full", "", func(s *Scene) {
			s.All.Full = &volume.Because{Reason: volume.ReasonDatabaseFull, Message: "the database is full", Next: volume.User()}
		}},
		{"a storage that is not well is one cause, for its node and for the volumes there", "", func(s *Scene) {
			s.StorageIll(corev1.PersistentVolumeFilesystem)
		}},
		{"one cause holds up several, in the order of how many", "", func(s *Scene) {
			s.All.Classes = nil
			s.Unbound()
			for i := range 3 {
				c := s.Claim.DeepCopy()
				c.Name, c.UID = fmt.Sprintf("more%d", i), c.UID+"-more"
				s.All.Claims = append(s.All.Claims, c)
			}
			s.Use(Pod("web", ""))
			s.All.CSINodes = s.All.CSINodes[1:]
		}},
		{"a Pod that names a missing claim", "", func(s *Scene) {
			s.All.Claims = nil
			s.Released()
			s.Use(Pod("web", "n1"))
			s.Detached()
		}},
		{"a volume that cannot be deleted", "", func(s *Scene) {
			s.Released()
			s.Detached()
			s.Warn("uid-v1", volume.ReasonFailedDelete, "volume has snapshots")
		}},
		{"what has no namespace may hold up several of them", "", func(s *Scene) {
			s.Unbound()
			s.All.Classes = nil
			c := s.Claim.DeepCopy()
			c.ObjectMeta = metav1.ObjectMeta{Namespace: "other", Name: "data"}
			s.All.Claims = append(s.All.Claims, c)
		}},
		{"a node holds up its Pods", "", func(s *Scene) {
			s.N1.Status.Conditions[0] = corev1.NodeCondition{
				Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown",
			}
		}},
		{"a Pod that has ended waits for nothing", "", func(s *Scene) {
			s.Pod.Status.Phase, s.All.Claims, s.All.Volumes, s.All.Attachments = corev1.PodSucceeded, nil, nil, nil
		}},
	}
}
