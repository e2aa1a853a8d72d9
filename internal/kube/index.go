package kube

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

const indexUID = "uid"

// Indexes of the caches. The value that an object is found under is named
// behind each.
const (
	// PodsByClaim: "namespace/claim" of each claim the Pod uses, generic
	// ephemeral ones included.
	PodsByClaim = "claim"
	// PodsByNode: spec.nodeName; "" are those without a node.
	PodsByNode = "node"
	// ClaimsByVolume: spec.volumeName.
	ClaimsByVolume = "volume"
	// UnboundByClass: the class's name of a claim that names no volume; "" for
	// claims without a class.
	UnboundByClass = "class"
	// UnboundBySource: "namespace/name" of the claim that a claim without a
	// volume is to be a copy of.
	UnboundBySource = "source"
	// VolumesByClaim: "namespace/name" of spec.claimRef.
	VolumesByClaim = "claim"
	// VolumesByHandle: "driver^handle" of a CSI volume.
	VolumesByHandle = "handle"
	// AttachmentsByVolume: spec.source.persistentVolumeName.
	AttachmentsByVolume = "volume"
	// AttachmentsByNode: spec.nodeName.
	AttachmentsByNode = "node"
	// CapacitiesByDriver: the driver's name in the label.
	CapacitiesByDriver = "driver"
	// CapacitiesByClass: the class's name.
	CapacitiesByClass = "class"
)

// ClaimNames returns the names of the claims that a Pod uses, in the Pod's
// namespace; a generic ephemeral volume's claim is named after both.
func ClaimNames(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, volume.EphemeralClaim(pod.Name, v.Name))
		}
	}
	return names
}

// byUID costs some hundred bytes for each object: only what is looked up has it.
func byUID(o any) ([]string, error) { return []string{string(o.(metav1.Object).GetUID())}, nil }

// nodePodIndexers are those of the Pods of one node.
func nodePodIndexers() cache.Indexers {
	all := podIndexers()
	all[indexUID] = byUID
	return all
}

func podIndexers() cache.Indexers {
	return cache.Indexers{
		PodsByClaim: func(o any) ([]string, error) {
			pod := o.(*corev1.Pod)
			names := ClaimNames(pod)
			for i := range names {
				names[i] = pod.Namespace + "/" + names[i]
			}
			return names, nil
		},
		PodsByNode: func(o any) ([]string, error) { return []string{o.(*corev1.Pod).Spec.NodeName}, nil },
	}
}

func claimIndexers() cache.Indexers {
	return cache.Indexers{
		indexUID: byUID,
		ClaimsByVolume: func(o any) ([]string, error) {
			return nonEmpty(o.(*corev1.PersistentVolumeClaim).Spec.VolumeName), nil
		},
		UnboundBySource: func(o any) ([]string, error) {
			c := o.(*corev1.PersistentVolumeClaim)
			if s := c.Spec.DataSource; s != nil && s.Kind == "PersistentVolumeClaim" && c.Spec.VolumeName == "" {
				return []string{c.Namespace + "/" + s.Name}, nil
			}
			return nil, nil
		},
		UnboundByClass: func(o any) ([]string, error) {
			c := o.(*corev1.PersistentVolumeClaim)
			if c.Spec.VolumeName != "" {
				return nil, nil
			}
			if name, ok := c.Annotations[volume.AnnBetaStorageClass]; ok {
				return []string{name}, nil
			}
			return []string{ptr.Deref(c.Spec.StorageClassName, "")}, nil
		},
	}
}

func volumeIndexers() cache.Indexers {
	return cache.Indexers{
		VolumesByClaim: func(o any) ([]string, error) {
			if r := o.(*corev1.PersistentVolume).Spec.ClaimRef; r != nil {
				return []string{r.Namespace + "/" + r.Name}, nil
			}
			return nil, nil
		},
		VolumesByHandle: func(o any) ([]string, error) {
			if s := o.(*corev1.PersistentVolume).Spec.CSI; s != nil {
				return []string{s.Driver + "^" + s.VolumeHandle}, nil
			}
			return nil, nil
		},
	}
}

func attachmentIndexers() cache.Indexers {
	return cache.Indexers{
		AttachmentsByVolume: func(o any) ([]string, error) {
			if n := o.(*storagev1.VolumeAttachment).Spec.Source.PersistentVolumeName; n != nil {
				return []string{*n}, nil
			}
			return nil, nil
		},
		AttachmentsByNode: func(o any) ([]string, error) {
			return nonEmpty(o.(*storagev1.VolumeAttachment).Spec.NodeName), nil
		},
	}
}

func capacityIndexers() cache.Indexers {
	return cache.Indexers{
		CapacitiesByDriver: func(o any) ([]string, error) {
			return nonEmpty(o.(*storagev1.CSIStorageCapacity).Labels[volume.LabelDriver]), nil
		},
		CapacitiesByClass: func(o any) ([]string, error) {
			return nonEmpty(o.(*storagev1.CSIStorageCapacity).StorageClassName), nil
		},
	}
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}
