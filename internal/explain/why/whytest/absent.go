package whytest

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// AbsentRows are what is reported when a driver is not where it is needed.
func AbsentRows() []Row { return append(refusedRows(), absentRows()...) }

// refusedRows are drivers that a node refuses, with a reason.
func refusedRows() []Row {
	refused := func(annotation, cause string) func(*Scene) {
		return func(s *Scene) {
			s.CSI1.Spec.Drivers = nil
			metav1.SetMetaDataAnnotation(&s.N1.ObjectMeta, annotation, `{"`+Driver+`":"`+cause+`"}`)
			s.Mounted(corev1.ConditionFalse, string(volume.ReasonDriverMissing),
				"driver d.example.com is not registered on node n1")
		}
	}
	unanswered := refused(volume.AnnRefused, "it was not registered: NodeGetInfo: DeadlineExceeded: no answer")
	crashed := refused(volume.AnnNotRun, "its program d.example.com has ended and is started again: exit status 1")
	controlled := func(change func(*Scene)) func(*Scene) {
		return func(s *Scene) {
			change(s)
			metav1.SetMetaDataAnnotation(&s.N1.ObjectMeta, volume.AnnControlPlane, "yes")
		}
	}
	return []Row{
		{"a driver that does not answer the node", "pod/web", unanswered},
		{"the same, of its node", "node/n1", unanswered},
		{"the same, of the driver", "csidriver/d.example.com", unanswered},
		{"a driver whose program ends, where the controllers call it", "pvc/data", controlled(func(s *Scene) {
			crashed(s)
			s.Unbound()
		})},
		{"the same, its volume is not attached", "pvc/data", controlled(func(s *Scene) { crashed(s); s.Attaching() })},
		{"a controller that is not ready, its node process has registered", "pvc/data", controlled(func(s *Scene) {
			drivers := s.CSI1.Spec.Drivers
			refused(volume.AnnNotRun, "its process "+Driver+"-controller is not ready: FailedPrecondition: none")(s)
			s.CSI1.Spec.Drivers = drivers
			s.Unbound()
		})},
		{"a program that ends is why it was not registered", "node/n1", func(s *Scene) {
			unanswered(s)
			crashed(s)
		}},
		{"a registered driver whose program has ended", "node/n1", func(s *Scene) {
			drivers := s.CSI1.Spec.Drivers
			crashed(s)
			s.CSI1.Spec.Drivers = drivers
		}},
	}
}

func absentRows() []Row {
	missing := func(s *Scene) {
		s.Mounted(corev1.ConditionFalse, string(volume.ReasonDriverMissing),
			"driver d.example.com is not registered on node n1")
	}
	return append([]Row{
		{"a FlexVolume's driver that is not installed", "pod/web", func(s *Scene) {
			s.FlexVolume()
			s.Attaching()
			s.FlexDrivers(`{}`)
			missing(s)
		}},
		{"the same, its node serves none", "pod/web", func(s *Scene) {
			s.FlexVolume()
			s.Attaching()
			s.CSI1.Spec.Drivers = nil
			missing(s)
		}},
		{"the same, it attaches and has attached", "pod/web", func(s *Scene) {
			s.FlexVolume()
			s.FlexDrivers(`{}`)
			missing(s)
		}},
		{"the same, in a Pod", "pod/web", func(s *Scene) { s.Inline(); s.FlexDrivers(`{}`); missing(s) }},
		{"in a Pod, and it does not initialise", "pod/web", func(s *Scene) {
			s.Inline()
			s.FlexDrivers(
				`{"c.example.com":"another cause","d.example.com":"driver example.com/d does not initialise: jq is not installed"}`,
			)
			missing(s)
		}},
		{"in a Pod, and it is about to register", "pod/web", func(s *Scene) {
			s.Inline()
			s.FlexDrivers(`{"d.example.com":""}`)
			missing(s)
		}},
		{"what the node said is over", "pod/web", func(s *Scene) { s.Inline(); missing(s) }},
		{"a driver that a bridge knows, of a volume written as CSI", "pvc/data", func(s *Scene) {
			s.Attaching()
			s.FlexDrivers(`{"d.example.com":"driver example.com/d was removed while it is needed"}`)
		}},
		{"a bridge that is not understood", "pvc/data", func(s *Scene) { s.Attaching(); s.FlexDrivers(`["d"]`) }},
		{"no node for want of it", "pod/web", func(s *Scene) {
			s.FlexVolume()
			s.FlexDrivers(`{}`)
			s.Homeless("0/2 nodes are available: n1: FlexVolume driver example.com/d is not installed there; n2: it " +
				"is not ready")
			s.All.CSINodes = nil
		}},
		{"the only node has it not", "pod/web", func(s *Scene) {
			s.FlexVolume()
			s.FlexDrivers(`{}`)
			s.Homeless("0/1 nodes are available: n1: FlexVolume driver example.com/d is not installed there")
			s.All.Nodes, s.All.CSINodes = s.All.Nodes[:1], nil
		}},
		{"no node for another reason", "pod/web", func(s *Scene) {
			s.FlexVolume()
			s.Homeless("0/2 nodes are available: n1: it is not ready; n2: it is not ready")
		}},
	}, slices.Concat(uselessRows(), placedRows())...)
}

// uselessRows are drivers that are registered and cannot be used, or not where the
// control plane needs them.
func uselessRows() []Row {
	return []Row{
		{"it was removed, and is kept to unmount with", "pod/web", func(s *Scene) {
			s.Inline()
			registered := s.CSI1.Spec.Drivers
			s.FlexDrivers(`{"d.example.com":"driver example.com/d was removed while it is needed; 1 volume can be unmounted with version 12ab, which is kept for that"}`)
			s.CSI1.Spec.Drivers = registered
			s.Mounted(corev1.ConditionFalse, string(volume.ReasonFailedMount), "NodePublishVolume by driver d.example.com: "+
				"Unavailable: no such FlexVolume driver: driver example.com/d was removed")
		}},
		{"the same, but that is not the cause", "pod/web", func(s *Scene) {
			s.Inline()
			registered := s.CSI1.Spec.Drivers
			s.FlexDrivers(`{"d.example.com":"driver example.com/d was removed while it is needed"}`)
			s.CSI1.Spec.Drivers = registered
			s.Mounted(corev1.ConditionFalse, string(volume.ReasonFailedMount),
				`volume data: the secret cannot be used: secrets "s" not found`)
		}},
		{"the control plane's host has a broken one", "pvc/data", func(s *Scene) {
			s.FlexVolume()
			s.NodeOnly()
			s.Called()
			s.All.Nodes[1].Annotations[volume.AnnDriverNotes] = `{"d.example.com":"driver example.com/d does not initialise: jq is not installed"}`
			s.Attachment.Status = storagev1.VolumeAttachmentStatus{
				AttachError: &storagev1.VolumeError{Message: "Unavailable: driver example.com/d does not initialise"},
			}
		}},
		{"a node with drivers that cannot be used", "node/n1", func(s *Scene) {
			s.FlexDrivers(`{"a.example.com":"driver example.com/a does not initialise: jq is not installed","d.example.com":""}`)
			s.CSI1.Spec.Drivers = CSINode("n1").Spec.Drivers
		}},
		{"the control plane's host has it not", "pvc/data", func(s *Scene) {
			s.Attachment.Status.Attached = false
			s.Controls()
		}},
		{"the control plane's host has no such FlexVolume driver", "pvc/data", func(s *Scene) {
			s.FlexVolume()
			s.Attachment.Status.Attached = false
			s.Controls()
			s.All.Nodes[1].Annotations[volume.AnnDriverNotes] = `{}`
		}},
		{"the control plane's host cannot detach", "volumeattachment/a1", func(s *Scene) {
			s.All.Pods, s.Attachment.DeletionTimestamp = nil, Now()
			s.Controls()
		}},
		{"the control plane's host cannot detach what has no volume any more", "volumeattachment/a1", func(s *Scene) {
			s.All.Pods, s.All.Volumes, s.Attachment.DeletionTimestamp = nil, nil, Now()
			s.Controls()
		}},
		{"the control plane's host cannot grow it", "pvc/data", func(s *Scene) { s.Wants("2Gi"); s.Controls() }},
		{"another host calls it", "pvc/data", func(s *Scene) {
			s.Attachment.Status.Attached = false
			s.Controls()
			s.Called()
		}},
		{"nobody calls its controller to attach", "pvc/data", func(s *Scene) {
			s.Attachment.Status.Attached = false
			s.NodeOnly()
		}},
		{"nobody calls its controller to make a volume", "pvc/data", func(s *Scene) { s.Unbound(); s.NodeOnly() }},
		{"nobody calls its controller to delete", "pv/v1", func(s *Scene) { s.Released(); s.Detached(); s.NodeOnly() }},
		{"what is attached is not deleted", "pv/v1", func(s *Scene) { s.Released(); s.NodeOnly() }},
		{"nobody calls its controller to grow it", "pvc/data", func(s *Scene) { s.Wants("2Gi"); s.NodeOnly() }},
		{"a driver that nobody calls", "csidriver/d.example.com", func(s *Scene) { s.Detached(); s.NodeOnly() }},
		{"whether somebody calls it may not be read", "pvc/data", func(s *Scene) {
			s.Attachment.Status.Attached = false
			s.NodeOnly()
			s.All.LeasesHidden = true
		}},
		{"who called it has given the lease back", "pvc/data", func(s *Scene) {
			s.Attachment.Status.Attached = false
			s.NodeOnly()
			s.Called()
			s.All.Leases[0].Spec.HolderIdentity = nil
		}},
	}
}

// placedRows are of a driver whose controllers run on each node.
func placedRows() []Row {
	return []Row{
		{"a node-local driver needs no lease", "pvc/data", func(s *Scene) {
			s.Attachment.Status.Attached = false
			s.NodeLocal("n1")
		}},
		{"a node-local driver is not where the volume is", "pvc/data", func(s *Scene) {
			s.Attachment.Status.Attached = false
			s.NodeLocal("n1")
			s.CSI1.Spec.Drivers = nil
		}},
		{"the node that is to make a volume is down", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.NodeLocal("n1")
			s.Claim.Annotations = map[string]string{volume.AnnSelectedNode: "n1"}
			s.All.Nodes[0].Status.Conditions = []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "no heartbeat for 40s",
			}}
		}},
		{"no Pod chooses the node that is to make a volume", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.NodeLocal("")
			s.Claim.Annotations = map[string]string{volume.AnnStorageProvisioner: "d.example.com"}
		}},
		{"no node has the driver that is to make a volume", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.NodeLocal("")
			s.All.CSINodes = nil
		}},
		{"a driver is delegated to nodes that do not call it", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.NodeOnly()
			s.Driver.Annotations = map[string]string{volume.AnnControllers: volume.Delegation([]string{"n1", "n3"})}
		}},
		{"a driver is delegated to a node that calls it", "pvc/data", func(s *Scene) {
			s.Unbound()
			s.Controls()
			s.Called()
			s.Driver.Annotations = map[string]string{volume.AnnControllers: volume.Delegation([]string{"n1"})}
		}},
		{"the node that is to delete a volume is gone", "pv/v1", func(s *Scene) {
			s.Released()
			s.Detached()
			s.NodeLocal("n3")
		}},
	}
}
