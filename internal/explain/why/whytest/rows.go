package whytest

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// ClaimRows are claims that have a volume, wait for one, or get none.
func ClaimRows() []Row {
	return append([]Row{
		{"a claim that is mounted", "pvc/data", func(*Scene) {}},
		{"no class by that name", "pvc/data", func(s *Scene) { s.Unbound(); s.All.Classes = nil }},
		{"no class named and none is the default", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.Claim.Spec.StorageClassName = nil
		}},
		{"no class named, and a default one", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.Claim.Spec.StorageClassName, s.Class.Annotations = nil, map[string]string{volume.AnnDefaultClass: "true"}
		}},
		{"no class wanted, no volume fits", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.Claim.Spec.StorageClassName = ptr.To("")
		}},
		{"the driver is nowhere", "pvc/data", func(s *Scene) { s.Unbound(); s.All.CSINodes = nil }},
		{"the provisioner has not begun", "pvc/data", (*Scene).Unbound},
		{"the driver is making the volume", "pvc/data", func(s *Scene) { s.Unbound(); s.Creating() }},
		{"the class has parameters that make no sense", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.Class.Parameters = map[string]string{
				"csi.storage.k8s.io/provisioner-secret-name": "${nosuch}", "csi.storage.k8s.io/provisioner-secret-namespace": "ns",
			}
		}},
		{"the class is one of a plugin whose place the driver has taken", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.Claim.Annotations = map[string]string{volume.AnnStorageProvisioner: s.Class.Provisioner}
			s.Class.Provisioner = "kubernetes.io/example"
		}},
		{"a free volume fits", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.Volume.Spec.ClaimRef, s.Volume.Status.Phase = nil, corev1.VolumeAvailable
			s.All.Volumes = []*corev1.PersistentVolume{s.Volume}
		}},
		{"the driver has enough to do", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.Warn("uid-data", volume.ReasonDriverBusy, "driver d.example.com has reached its limit of concurrent create "+
				"calls; waiting for a slot")
		}},
		{"whether the driver is making the volume may not be read", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.All.MakingHidden = true
		}},
		{"the driver refuses", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.Warn("uid-data", volume.ReasonProvisioningFailed, "rpc error: code = ResourceExhausted desc = pool is full")
		}},
		{"the driver is out of order", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.Warn("uid-data", volume.ReasonProvisioningFailed, "driver d.example.com did not create a volume: Internal: "+
				"disk on fire")
		}},
		{"a warning about an earlier claim of the same name is not heard", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.Warn("uid-before", volume.ReasonProvisioningFailed, "boom")
		}},
	}, append(lateRows(), namedRows()...)...)
}

// lateRows are of claims that wait for their first consumer.
func lateRows() []Row {
	return []Row{
		{"a Pod whose user has named a node without the data of its claim", "pvc/data", func(s *Scene) {
			s.Late()
			s.Use(Pod("web", "n1"))
			s.Warn("uid-web", volume.ReasonFailedPlacing,
				"the pod is for node n1, and the volume of claim data is made of snapshot nightly, which is on node n2")
			s.Next(volume.User())
		}},
		{"a late class and nobody uses the claim", "pvc/data", (*Scene).Late},
		{"a late class and a Pod without a node", "pvc/data", func(s *Scene) { s.Late(); s.Use(Pod("web", "")) }},
		{"a late class and a Pod that finds no node", "pvc/data", func(s *Scene) {
			s.Late()
			p := Pod("web", "")
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Message: "0/2 nodes are available: n1: the node is not ready; n2: the node is cordoned",
			}}
			s.Use(p)
		}},
		{"no node has room", "pvc/data", func(s *Scene) {
			s.Short(volume.ReasonNotEnoughStorage, volume.User(), "0/1 nodes are available: n1: node(s) did not have enough "+
				"free storage: claim data asks for 2Ti, class fast has volumes of up to 97.9Gi there")
		}},
		{"no node has room, says a cluster's scheduler", "pvc/data", func(s *Scene) {
			s.Short("", volume.Actor{}, "0/3 nodes are available: 3 node(s) did not have enough free storage. not found")
		}},
		{"the driver has not told its capacity yet", "pvc/data", func(s *Scene) {
			s.Short(volume.ReasonCapacityUnknown, volume.Driver(s.Class.Provisioner), "0/1 nodes are available: n1: node(s) "+
				"did not have enough free storage: driver d.example.com has not reported how much space class fast has there")
		}},
		{"the driver does not report its capacity", "pvc/data", func(s *Scene) {
			s.Short(volume.ReasonCapacityUnknown, volume.Driver(s.Class.Provisioner), "0/1 nodes are available: n1: node(s) "+
				"did not have enough free storage: driver d.example.com has not reported how much space class fast has there")
			s.Warn("uid-fast", volume.ReasonCapacityUnknown,
				"driver d.example.com does not report the capacity of class fast in zone=a: Internal: disk on fire")
		}},
		{"a late class and a Pod that named its node", "pvc/data", func(s *Scene) { s.Late(); s.Use(Pod("web", "n1")) }},
		{"a late class whose volumes are made by hand", "pvc/data", func(s *Scene) {
			s.Late()
			s.Class.Provisioner = volume.NoProvisioner
		}},
	}
}

// namedRows are of claims that name a volume.
func namedRows() []Row {
	return []Row{
		{"a named volume that does not exist", "pvc/data", func(s *Scene) { s.Unbound(); s.Claim.Spec.VolumeName = "v9" }},
		{"a named volume that is another claim's", "pvc/data", func(s *Scene) {
			s.Pending()
			s.Volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "other"}
		}},
		{"a named volume that does not fit", "pvc/data", func(s *Scene) {
			s.Pending()
			s.Volume.Spec.ClaimRef = nil
			s.Wants("2Gi")
		}},
		{"a volume that is just being bound", "pvc/data", (*Scene).Pending},
		{"a bound claim whose volume is gone", "pvc/data", func(s *Scene) { s.All.Volumes = nil }},
		{"a volume that has another uid for the claim that names it", "pv/v1", func(s *Scene) {
			s.Volume.Spec.ClaimRef.UID = "uid-edited"
		}},
		{"one that was released for that", "pv/v1", func(s *Scene) {
			s.Volume.Spec.ClaimRef.UID, s.Volume.Status.Phase, s.Claim.Status.Phase = "uid-edited", corev1.VolumeReleased,
				corev1.ClaimLost
		}},
		{"a lost claim", "pvc/data", func(s *Scene) { s.Claim.Status.Phase, s.All.Volumes = corev1.ClaimLost, nil }},
		{"the volume is being deleted under the claim", "pvc/data", func(s *Scene) {
			s.Goes(volume.FinalizerVolumeProtection)
		}},
		{"deleted while a Pod uses it", "pvc/data", func(s *Scene) {
			s.Claim.DeletionTimestamp, s.Claim.Finalizers = Now(), []string{volume.FinalizerClaimProtection}
		}},
		{"deleted while it is mounted at a path of the host", "pvc/data", func(s *Scene) {
			s.Claim.DeletionTimestamp, s.Claim.Finalizers = Now(), []string{volume.FinalizerClaimProtection}
			s.Pod.Name, s.Pod.Annotations = "mount-337ee6bf6f", map[string]string{volume.AnnMountAt: "/srv/data"}
		}},
		{"deleted and not used", "pvc/data", func(s *Scene) {
			s.Claim.DeletionTimestamp, s.Claim.Finalizers, s.All.Pods = Now(), []string{volume.FinalizerClaimProtection}, nil
		}},
		{"deleted while a copy of it is made", "pvc/data", func(s *Scene) {
			s.Claim.DeletionTimestamp, s.Claim.Finalizers, s.All.Pods = Now(),
				[]string{"example.com/keep", volume.FinalizerCloning}, nil
			s.Creating()
			s.All.Begun[0].Source, s.All.Begun[0].SourceName = "h1", "data"
		}},
		{"deleted while nobody can say whether a copy is made", "pvc/data", func(s *Scene) {
			s.Claim.DeletionTimestamp, s.Claim.Finalizers, s.All.Pods = Now(), []string{volume.FinalizerCloning}, nil
		}},
		{"deleted and held by a stranger", "pvc/data", func(s *Scene) {
			s.Claim.DeletionTimestamp, s.Claim.Finalizers = Now(), []string{"example.com/keep"}
		}},
	}
}

// MoveRows are of volumes on their way to the bridge.
func MoveRows() []Row {
	return []Row{
		{"a claim that is being moved to the bridge", "pvc/data", func(s *Scene) {
			s.All.Claims, s.All.Volumes, s.All.Pods, s.All.Attachments = nil, nil, nil, nil
			s.All.Moves = []state.Move{{Volume: "v0"}, {Volume: "v1", Claim: "ns/data"}}
		}},
		{"and its volume, back", "pv/v1", func(s *Scene) {
			s.All.Claims, s.All.Volumes, s.All.Pods, s.All.Attachments = nil, nil, nil, nil
			s.All.Moves = []state.Move{{Volume: "v1", Claim: "ns/data", Back: true}}
		}},
		{"a volume that is there, and whose claim is not yet", "pv/v1", func(s *Scene) {
			s.Released()
			s.Detached()
			s.All.Moves = []state.Move{{Volume: "v1", Claim: "ns/data"}}
		}},
		{"a move that is forgotten when all is well", "pvc/data", func(s *Scene) {
			s.All.Moves = []state.Move{{Volume: "v1", Claim: "ns/data"}}
		}},
	}
}

// AttachmentRows are volumes that are to be attached or detached.
func AttachmentRows() []Row {
	return append([]Row{
		{"a Pod that named a node from which its volume cannot be used", "pod/other", func(s *Scene) {
			s.Volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
				}}},
			}}
			s.N1.Labels = map[string]string{"zone": "a"}
			s.Use(Pod("other", "n2"))
		}},
		{"another node has the volume", "pod/other", func(s *Scene) { s.Use(Pod("other", "n2")) }},
		{"another node has it, and does not get rid of it", "pod/other", func(s *Scene) {
			s.Use(Pod("other", "n2"))
			s.Pod.DeletionTimestamp = Now()
			s.Failed(mount.Unpublish, "NodeUnpublishVolume by driver d.example.com: Internal: target is busy",
				false)
		}},
		{"another node has it, and is dead", "pod/other", func(s *Scene) {
			s.Use(Pod("other", "n2"))
			s.N1.Status.Conditions[0] = corev1.NodeCondition{
				Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown",
			}
		}},
		{"the driver does not detach it from another node", "pod/other", func(s *Scene) {
			s.All.Pods = nil
			s.Use(Pod("other", "n2"))
			s.Detaching()
			s.Attachment.Status.DetachError = &storagev1.VolumeError{Message: "Internal: array a1 does not answer"}
		}},
		{"another node still uses it, though it is not attached there", "pod/other", func(s *Scene) { s.UsedAlone(true) }},
		{"another object stands for the same volume, and its Pod has it", "pod/other", func(s *Scene) { s.SameHandle() }},
		{"the same, which only the controller could see", "pod/other", func(s *Scene) {
			s.UsedAlone(true)
			s.All.Warnings[0].Message += ", for pod first"
			s.Next(volume.PodActor("first"))
		}},
		{"another node alone says that it uses it", "pod/other", func(s *Scene) { s.UsedAlone(false) }},
		{"another node has used it, and does no longer", "pod/other", func(s *Scene) {
			s.UsedAlone(true)
			s.N1.Status.VolumesInUse = nil
		}},
		{"there is no such node", "pod/other", func(s *Scene) {
			s.All.Pods, s.All.Attachments = nil, nil
			s.Use(Pod("other", "n9"))
		}},
		{"the node of a Pod that has ended still has it", "pod/other", func(s *Scene) {
			s.Pod.Status.Phase = corev1.PodSucceeded
			s.Use(Pod("other", "n2"))
		}},
		{"several nodes may have it", "pod/other", func(s *Scene) {
			s.Volume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
			s.Claim.Status.AccessModes = s.Volume.Spec.AccessModes
			s.Use(Pod("other", "n2"))
		}},
		{"nobody has asked yet", "pvc/data", (*Scene).Detached},
		{"the node takes no more", "pod/web", func(s *Scene) {
			a := Attachment("n1")
			a.Name = "a2"
			a.Spec.Source.PersistentVolumeName = ptr.To("v2")
			s.All.Attachments = []*storagev1.VolumeAttachment{a}
			s.CSI1.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(int32(1))}
		}},
		{"the driver is at it", "pvc/data", (*Scene).Attaching},
		{"the driver refuses", "pvc/data", func(s *Scene) {
			s.Attachment.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no such disk"}}
		}},
		{"the driver does not list it there", "pod/web", func(s *Scene) {
			s.Attachment.Status.AttachError = &storagev1.VolumeError{Message: "driver d.example.com does not list it there"}
		}},
		{"the driver is not on the node", "pvc/data", func(s *Scene) { s.Attaching(); s.CSI1.Spec.Drivers = nil }},
		{"the driver needs no attaching", "pvc/data", func(s *Scene) {
			s.Detached()
			s.Driver.Spec.AttachRequired = ptr.To(false)
		}},
	}, leavingRows()...)
}

// leavingRows are attachments that no Pod wants.
func leavingRows() []Row {
	return []Row{
		{"nobody uses it and the node still has it mounted", "pvc/data", func(s *Scene) {
			s.All.Pods = nil
			s.N1.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName(Driver, "h1"))}
		}},
		{"and is dead", "pvc/data", func(s *Scene) {
			s.StillMounted("")
			s.All.Warnings = nil
			s.N1.Status.Conditions[0] = corev1.NodeCondition{
				Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown",
			}
		}},
		{"and cannot get rid of it", "pvc/data", func(s *Scene) {
			s.StillMounted("NodeUnstageVolume by driver d: Internal: busy")
		}},
		{"nobody uses it", "pvc/data", func(s *Scene) { s.All.Pods = nil }},
		{"it is being detached", "volumeattachment/a1", func(s *Scene) { s.All.Pods = nil; s.Detaching() }},
		{"it is detached, and somebody else holds the attachment", "volumeattachment/a1", func(s *Scene) {
			s.All.Pods, s.Attachment.DeletionTimestamp, s.Attachment.Finalizers = nil, Now(), []string{"example.com/keep"}
		}},
		{"somebody else has made the attachment", "pvc/data", func(s *Scene) {
			s.All.Pods, s.Attachment.Name = nil, "by-hand"
		}},
		{"it cannot be detached", "volumeattachment/a1", func(s *Scene) {
			s.All.Pods = nil
			s.Attachment.Status.DetachError = &storagev1.VolumeError{Message: "device is busy"}
		}},
		{"the volume is gone, its attachment is not", "volumeattachment/a1", func(s *Scene) { s.All.Volumes = nil }},
		{"the same, being detached", "volumeattachment/a1", func(s *Scene) { s.All.Volumes = nil; s.Detaching() }},
		{"the same, not to be detached", "volumeattachment/a1", func(s *Scene) {
			s.All.Volumes, s.Attachment.Status.DetachError = nil, &storagev1.VolumeError{Message: "device is busy"}
		}},
		{"what another attacher says of a volume that is not a CSI volume", "volumeattachment/a1", func(s *Scene) {
			s.Detaching()
			s.Volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{}}
			s.Attachment.Status.DetachError = &storagev1.VolumeError{Message: "device is busy"}
		}},
		{"and of one that needs no attaching any more", "volumeattachment/a1", func(s *Scene) {
			s.Detaching()
			s.Driver.Spec.AttachRequired = ptr.To(false)
			s.Attachment.Status.DetachError = &storagev1.VolumeError{Message: "device is busy"}
		}},
		{"a volume written in a Pod is being attached", "volumeattachment/a1", func(s *Scene) {
			s.InlineAttachment()
		}},
		{"and cannot be", "volumeattachment/a1", func(s *Scene) {
			s.InlineAttachment()
			s.Attachment.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no such disk"}}
		}},
	}
}

// ConsumerRows are Pods.
func ConsumerRows() []Row {
	return []Row{
		{"a Pod whose volumes are mounted", "pod/web", func(*Scene) {}},
		{"a Pod with a volume that is ill", "pvc/data", func(s *Scene) { s.Ill(); s.Next(volume.Administrator("n1")) }},
		{"a Pod with a volume that is ill, of which no event is left", "pod/web", func(s *Scene) {
			s.Ill()
			s.All.Warnings = nil
		}},
		{"a Pod over whose volume something is mounted", "pod/web", (*Scene).Covered},
		{"a Pod that has lost its volume, which the driver does not mount again", "pod/web", (*Scene).Lost},
		{"a Pod that names a claim that does not exist", "pod/web", func(s *Scene) { s.All.Claims = nil }},
		{"a Pod without claims that finds no node", "pod/other", func(s *Scene) {
			p := Pod("other", "")
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available"},
			}
			p.Spec.Volumes = nil
			s.All.Pods = append(s.All.Pods, p)
		}},
		{"a Pod without a node", "pod/web", func(s *Scene) { s.Detached(); s.Pod.Spec.NodeName = "" }},
		{"a Pod that has ended", "pod/web", func(s *Scene) { s.Pod.Status.Phase = corev1.PodFailed }},
		{"a Pod that was given up", "pod/web", func(s *Scene) {
			s.Pod.Status.Phase, s.Pod.Status.Message = corev1.PodFailed, "node n1 takes no more volumes of driver d.example.com"
		}},
		{"the node is gone", "pod/web", func(s *Scene) { s.All.Nodes = s.All.Nodes[1:] }},
		{"the node is not ready", "pod/web", func(s *Scene) {
			s.N1.Status.Conditions[0] = corev1.NodeCondition{
				Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "the agent has stopped",
			}
		}},
		{"the node has said nothing", "pod/web", func(s *Scene) { s.Pod.Status.Conditions = nil }},
		{"the node is mounting", "pod/web", func(s *Scene) {
			s.Mounted(corev1.ConditionFalse, string(volume.ReasonMounting), "driver d.example.com is staging volume v1")
		}},
		{"a Pod whose claim is being deleted does not wait for that", "pod/web", func(s *Scene) {
			s.Claim.DeletionTimestamp, s.Claim.Finalizers = Now(), []string{volume.FinalizerClaimProtection}
		}},
		{"another Pod has the volume that is for one", "pod/web", notMounted(volume.ReasonInUse,
			"volume v1 is for one Pod only and Pod ns/first has it", volume.PodActor("ns/first"))},
		{"another Pod has the volume with another SELinux label", "pod/web", (*Scene).OtherLabel},
		{"the node waits for the attach", "pod/web", notMounted(volume.ReasonWaitForAttach,
			"volume v1 is not attached to node n1 yet", volume.Controller("attacher"))},
		{"the driver hangs", "pod/web", (*Scene).Asked},
		{"the mount fails", "pod/web", func(s *Scene) {
			s.Failed(mount.Publish, "volume v1: rpc error: code = Internal desc = bad superblock", false)
		}},
		{"something is in the way of the mount", "pod/web", func(s *Scene) {
			s.Failed(mount.Publish, "target of volume v1: /t: another file is there: a file", true)
			s.Warn("uid-web", volume.ReasonFailedMount, "another volume of the Pod has another cause")
		}},
		{"the driver of the mount is away", "pod/web", notMounted(volume.ReasonDriverMissing,
			"driver d is not registered on node n1", volume.Driver("d"))},
		{"a node agent without the condition says it by event", "pod/web", func(s *Scene) {
			s.Pod.Status.Conditions = nil
			s.Warn("uid-web", volume.ReasonFailedMount, "MountVolume.SetUp failed: bad superblock")
		}},
		{"the disk of the node is full", "pod/web", func(s *Scene) {
			s.Failed(mount.Publish, "write journal record of d.example.com^h1: no space left on device", true)
		}},
		{"a Pod that is being deleted", "pod/web", func(s *Scene) { s.Pod.DeletionTimestamp = Now() }},
		{"while the driver hangs", "pod/web", func(s *Scene) {
			s.Asked()
			s.Pod.DeletionTimestamp = Now()
		}},
		{"and cannot be unmounted", "pod/web", func(s *Scene) {
			s.Pod.DeletionTimestamp = Now()
			s.Failed(mount.Unpublish,
				"NodeUnpublishVolume by driver d.example.com: Internal: unmount /t: device or resource busy",
				false)
		}},
	}
}

// notMounted has the node agent report why a Pod's volumes are not mounted, and who acts next.
func notMounted(r volume.Reason, message string, next volume.Actor) func(*Scene) {
	return func(s *Scene) { s.NotMounted(volume.Because{Reason: r, Message: message, Next: next}) }
}

// DeletedRows are of a Pod that was deleted for its node.
func DeletedRows() []Row {
	return []Row{
		{"a Pod that was deleted for its node", "pod/web", func(s *Scene) { s.Deleted("data,gone") }},
		{"the same, the claim is asked about", "pvc/data", func(s *Scene) { s.Deleted("other,data") }},
		{"the same, another Pod has the claim", "pvc/data", func(s *Scene) { s.Deleted("data"); s.Use(Pod("new", "n1")) }},
		{"the same, the claim is younger", "pvc/data", func(s *Scene) {
			s.Deleted("data")
			s.Claim.CreationTimestamp = At(2)
		}},
	}
}
