package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// Names of the indexes of each kind. Each comment says by which value an object is found.
const (
	// PodsByClaim: "namespace/claim" of each claim the Pod uses, including those of generic
	// ephemeral volumes.
	PodsByClaim = "claim"
	// PodsByNode: spec.nodeName; "" for Pods without a node.
	PodsByNode = "node"
	// ClaimsByVolume: spec.volumeName.
	ClaimsByVolume = "volume"
	// UnboundByClass: the name of the class of a claim without spec.volumeName; "" for claims
	// without a class.
	UnboundByClass = "class"
	// UnboundBySource: "namespace/name" of the claim that a claim without spec.volumeName is to be
	// a clone of.
	UnboundBySource = "source"
	// UnboundBySnapshot: "namespace/name" of the snapshot that the data of a claim without spec.volumeName, which is in
	// the same namespace, are to come from.
	UnboundBySnapshot = "snapshot"
	// ClaimsByAttributes: the VolumeAttributesClasses that a claim asks for, has, or is about to get.
	ClaimsByAttributes = "attributes"
	// VolumesByAttributes: spec.volumeAttributesClassName.
	VolumesByAttributes = "attributes"
	// VolumesByClaim: "namespace/name" of spec.claimRef.
	VolumesByClaim = "claim"
	// VolumesByHandle: "driver^handle" of a CSI volume.
	VolumesByHandle = "handle"
	// AttachmentsByVolume: spec.source.persistentVolumeName.
	AttachmentsByVolume = "volume"
	// AttachmentsByNode: spec.nodeName.
	AttachmentsByNode = "node"
	// NodesByVolume: each of status.volumesInUse.
	NodesByVolume = "volume"
	// CapacitiesByDriver: the driver's name in the label LabelDriver.
	CapacitiesByDriver = "driver"
	// CapacitiesByClass: the class's name.
	CapacitiesByClass = "class"
)

// ClaimNames returns the names of the claims that a Pod uses, in the Pod's namespace, including
// those of generic ephemeral volumes.
func ClaimNames(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Volumes {
		if name := ClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// ClaimName returns the name of the claim behind one of a Pod's volumes; it is empty if there is none.
func ClaimName(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return volume.EphemeralClaim(pod.Name, v.Name)
	}
	return ""
}

// Finished says whether a Pod has succeeded or failed, so that it does not use its volumes any
// more.
func Finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// IsBlock says whether a volume mode is Block. Without a mode a volume has a filesystem.
func IsBlock(m *corev1.PersistentVolumeMode) bool {
	return m != nil && *m == corev1.PersistentVolumeBlock
}

// Indexers maps the name of an index to the function that returns an object's values in it.
type Indexers[T any] map[string]func(T) []string

// PodIndexers returns the indexes of Pods.
func PodIndexers() Indexers[*corev1.Pod] {
	return Indexers[*corev1.Pod]{
		PodsByClaim: func(pod *corev1.Pod) []string {
			names := ClaimNames(pod)
			for i := range names {
				names[i] = pod.Namespace + "/" + names[i]
			}
			return names
		},
		PodsByNode: func(pod *corev1.Pod) []string { return []string{pod.Spec.NodeName} },
	}
}

// NodeIndexers returns the indexes of Nodes.
func NodeIndexers() Indexers[*corev1.Node] {
	return Indexers[*corev1.Node]{
		NodesByVolume: func(n *corev1.Node) []string {
			names := make([]string, 0, len(n.Status.VolumesInUse))
			for _, name := range n.Status.VolumesInUse {
				names = append(names, string(name))
			}
			return names
		},
	}
}

// ClaimIndexers returns the indexes of PersistentVolumeClaims.
func ClaimIndexers() Indexers[*corev1.PersistentVolumeClaim] {
	return Indexers[*corev1.PersistentVolumeClaim]{
		ClaimsByVolume: func(c *corev1.PersistentVolumeClaim) []string { return nonEmpty(c.Spec.VolumeName) },
		UnboundBySource: func(c *corev1.PersistentVolumeClaim) []string {
			if s := SourceOf(c); s.IsClaim() && c.Spec.VolumeName == "" {
				return []string{s.Key()}
			}
			return nil
		},
		UnboundBySnapshot: func(c *corev1.PersistentVolumeClaim) []string {
			// One of another namespace must not keep a snapshot from being deleted.
			if s := SourceOf(c); s.IsSnapshot() && !s.IsElsewhere(c) && c.Spec.VolumeName == "" {
				return []string{s.Key()}
			}
			return nil
		},
		ClaimsByAttributes: AttributesOfClaim,
		UnboundByClass: func(c *corev1.PersistentVolumeClaim) []string {
			if c.Spec.VolumeName != "" {
				return nil
			}
			if name, ok := c.Annotations[volume.AnnBetaStorageClass]; ok {
				return []string{name}
			}
			return []string{ptr.Deref(c.Spec.StorageClassName, "")}
		},
	}
}

// AttributesOfVolume returns the VolumeAttributesClass that a volume names, if it names one.
func AttributesOfVolume(v *corev1.PersistentVolume) []string {
	return nonEmpty(ptr.Deref(v.Spec.VolumeAttributesClassName, ""))
}

// AttributesOfClaim returns the VolumeAttributesClasses that a claim names: those that it asks for, has, and is about
// to get.
func AttributesOfClaim(c *corev1.PersistentVolumeClaim) []string {
	all := []string{
		ptr.Deref(c.Spec.VolumeAttributesClassName, ""), ptr.Deref(c.Status.CurrentVolumeAttributesClassName, ""),
	}
	if s := c.Status.ModifyVolumeStatus; s != nil {
		all = append(all, s.TargetVolumeAttributesClassName)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(name string) bool { return name == "" })
}

// VolumeIndexers returns the indexes of PersistentVolumes.
func VolumeIndexers() Indexers[*corev1.PersistentVolume] {
	return Indexers[*corev1.PersistentVolume]{
		VolumesByClaim: func(v *corev1.PersistentVolume) []string {
			if r := v.Spec.ClaimRef; r != nil {
				return []string{r.Namespace + "/" + r.Name}
			}
			return nil
		},
		VolumesByAttributes: AttributesOfVolume,
		VolumesByHandle: func(v *corev1.PersistentVolume) []string {
			if s := v.Spec.CSI; s != nil {
				return []string{volume.Key(s.Driver, s.VolumeHandle)}
			}
			return nil
		},
	}
}

// AttachmentIndexers returns the indexes of VolumeAttachments.
func AttachmentIndexers() Indexers[*storagev1.VolumeAttachment] {
	return Indexers[*storagev1.VolumeAttachment]{
		AttachmentsByVolume: func(a *storagev1.VolumeAttachment) []string {
			return nonEmpty(ptr.Deref(a.Spec.Source.PersistentVolumeName, ""))
		},
		AttachmentsByNode: func(a *storagev1.VolumeAttachment) []string { return nonEmpty(a.Spec.NodeName) },
	}
}

// CapacityIndexers returns the indexes of CSIStorageCapacities.
func CapacityIndexers() Indexers[*storagev1.CSIStorageCapacity] {
	return Indexers[*storagev1.CSIStorageCapacity]{
		CapacitiesByDriver: func(c *storagev1.CSIStorageCapacity) []string { return nonEmpty(c.Labels[volume.LabelDriver]) },
		CapacitiesByClass:  func(c *storagev1.CSIStorageCapacity) []string { return nonEmpty(c.StorageClassName) },
	}
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}
