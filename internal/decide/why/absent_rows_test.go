package why_test

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/volume"
)

// absentRows are what is told when a driver is not where it is needed.
func absentRows() []row {
	missing := func(s *scene) {
		s.mounted(corev1.ConditionFalse, string(volume.ReasonDriverMissing),
			"driver d.example.com is not registered on node n1")
	}
	return append([]row{
		{"a FlexVolume's driver that is not installed", "pod/web", func(s *scene) {
			s.flexVolume()
			s.attaching()
			s.flexDrivers(`{}`)
			missing(s)
		}},
		{"the same, its node serves none", "pod/web", func(s *scene) {
			s.flexVolume()
			s.attaching()
			s.csi1.Spec.Drivers = nil
			missing(s)
		}},
		{"the same, it attaches and has attached", "pod/web", func(s *scene) {
			s.flexVolume()
			s.flexDrivers(`{}`)
			missing(s)
		}},
		{"the same, in a Pod", "pod/web", func(s *scene) { s.inline(); s.flexDrivers(`{}`); missing(s) }},
		{"in a Pod, and it does not initialise", "pod/web", func(s *scene) {
			s.inline()
			s.flexDrivers(
				`{"c.example.com":"another cause","d.example.com":"driver example.com/d does not initialise: jq is not installed"}`,
			)
			missing(s)
		}},
		{"in a Pod, and it is about to register", "pod/web", func(s *scene) {
			s.inline()
			s.flexDrivers(`{"d.example.com":""}`)
			missing(s)
		}},
		{"what the node said is over", "pod/web", func(s *scene) { s.inline(); missing(s) }},
		{"a driver that a bridge knows, of a volume written as CSI", "pvc/data", func(s *scene) {
			s.attaching()
			s.flexDrivers(`{"d.example.com":"driver example.com/d was removed while it is needed"}`)
		}},
		{"a bridge that is not understood", "pvc/data", func(s *scene) { s.attaching(); s.flexDrivers(`["d"]`) }},
		{"no node for want of it", "pod/web", func(s *scene) {
			s.flexVolume()
			s.flexDrivers(`{}`)
			s.homeless("0/2 nodes are available: n1: FlexVolume driver example.com/d is not installed there; n2: it " +
				"is not ready")
			s.all.CSINodes = nil
		}},
		{"the only node has it not", "pod/web", func(s *scene) {
			s.flexVolume()
			s.flexDrivers(`{}`)
			s.homeless("0/1 nodes are available: n1: FlexVolume driver example.com/d is not installed there")
			s.all.Nodes, s.all.CSINodes = s.all.Nodes[:1], nil
		}},
		{"no node for another reason", "pod/web", func(s *scene) {
			s.flexVolume()
			s.homeless("0/2 nodes are available: n1: it is not ready; n2: it is not ready")
		}},
	}, uselessRows()...)
}

// uselessRows are of drivers that are there and cannot be used, or not where the control
// plane needs them.
func uselessRows() []row {
	return []row{
		{"it was removed, and is kept to unmount with", "pod/web", func(s *scene) {
			s.inline()
			registered := s.csi1.Spec.Drivers
			s.flexDrivers(`{"d.example.com":"driver example.com/d was removed while it is needed; 1 volume can be unmounted with version 12ab, which is kept for that"}`)
			s.csi1.Spec.Drivers = registered
			s.mounted(corev1.ConditionFalse, string(volume.ReasonFailedMount), "NodePublishVolume by driver d.example.com: "+
				"Unavailable: no such FlexVolume driver: driver example.com/d was removed")
		}},
		{"the same, but that is not the cause", "pod/web", func(s *scene) {
			s.inline()
			registered := s.csi1.Spec.Drivers
			s.flexDrivers(`{"d.example.com":"driver example.com/d was removed while it is needed"}`)
			s.csi1.Spec.Drivers = registered
			s.mounted(corev1.ConditionFalse, string(volume.ReasonFailedMount),
				`volume data: the secret cannot be used: secrets "s" not found`)
		}},
		{"the control plane's host has a broken one", "pvc/data", func(s *scene) {
			s.flexVolume()
			s.controls()
			s.all.CSINodes = append(s.all.CSINodes, csiNode("n2"))
			s.all.Nodes[1].Annotations[volume.AnnDriverNotes] = `{"d.example.com":"driver example.com/d does not initialise: jq is not installed"}`
			s.attachment.Status = storagev1.VolumeAttachmentStatus{
				AttachError: &storagev1.VolumeError{Message: "Unavailable: driver example.com/d does not initialise"},
			}
		}},
		{"a node with drivers that cannot be used", "node/n1", func(s *scene) {
			s.flexDrivers(`{"a.example.com":"driver example.com/a does not initialise: jq is not installed","d.example.com":""}`)
			s.csi1.Spec.Drivers = csiNode("n1").Spec.Drivers
		}},
		{"the control plane's host has it not", "pvc/data", func(s *scene) {
			s.attachment.Status.Attached = false
			s.controls()
		}},
		{"the control plane's host has no such FlexVolume driver", "pvc/data", func(s *scene) {
			s.flexVolume()
			s.attachment.Status.Attached = false
			s.controls()
			s.all.Nodes[1].Annotations[volume.AnnDriverNotes] = `{}`
		}},
		{"the control plane's host cannot detach", "volumeattachment/a1", func(s *scene) {
			s.all.Pods, s.attachment.DeletionTimestamp = nil, now()
			s.controls()
		}},
		{"the control plane's host cannot detach what has no volume any more", "volumeattachment/a1", func(s *scene) {
			s.all.Pods, s.all.Volumes, s.attachment.DeletionTimestamp = nil, nil, now()
			s.controls()
		}},
		{"the control plane's host cannot grow it", "pvc/data", func(s *scene) { s.wants("2Gi"); s.controls() }},
	}
}
