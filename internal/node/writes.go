package node

import (
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Writes lists the fields that an agent writes: of its own Node, CSINode and Lease, of its Pods, and of
// their claims. The Node authorizer and NodeRestriction grant the rights.
func Writes() []kube.Access {
	return []kube.Access{
		kube.Write("", "nodes", "create", "patch").Only("metadata.labels", kube.Annotation(volume.AnnControllerManagedAttach),
			kube.Annotation(volume.AnnControlPlane), kube.Annotation(volume.AnnLegacyNodeID),
			kube.Annotation(volume.AnnRefused)),
		kube.Write("", "nodes/status", "patch").
			Only("status.capacity", "status.allocatable", "status.nodeInfo", "status.volumesInUse",
				"status.addresses").
			Shared("says that it is there; nodelife says so of a silent one", kube.Condition(corev1.NodeReady)),
		kube.Write("storage.k8s.io", "csinodes", "create", "update", "delete").Only("spec.drivers"),
		kube.Write("storage.k8s.io", "csinodes/status", "update").Only("status.storageHealth"),
		kube.Write("coordination.k8s.io", "leases", "create", "update").Only("spec", "metadata.ownerReferences"),
		kube.Write("", "pods/status", "patch").Only(kube.Condition(volume.ConditionVolumesMounted),
			kube.Condition(volume.ConditionVolumesHealthy), kube.Annotation(volume.AnnNextMounted),
			kube.Annotation(volume.AnnCauseMounted), kube.Annotation(volume.AnnPaths),
			kube.Annotation(volume.AnnCalledAt), kube.Annotation(volume.AnnNextHealthy),
			kube.Annotation(volume.AnnCauseHealthy), "status.phase", "status.reason", "status.message",
			"status.volumeHealth"),
		kube.Write("", "pods", "delete").Shared("for good, when nothing is mounted for them any more; "+
			"at first those that end when somebody unmounts their path", "deletion"),
		kube.Write("", "persistentvolumeclaims/status", "patch").Shared("when the node has had its turn, over the version "+
			"that it has read", "status.capacity", "status.allocatedResourceStatuses",
			kube.Condition(corev1.PersistentVolumeClaimResizing),
			kube.Condition(corev1.PersistentVolumeClaimFileSystemResizePending),
			kube.Condition(corev1.PersistentVolumeClaimControllerResizeError),
			kube.Condition(corev1.PersistentVolumeClaimNodeResizeError)),
	}
}
