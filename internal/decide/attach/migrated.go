package attach

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
)

// migratedHandle returns the handle that a volume of a plugin of Kubernetes' own has at the driver that has taken the
// plugin's place; "" if it is not certain. Upstream's attacher writes no record of it. The attachment's name is made of
// the handle, and so proves it.
func migratedHandle(a *storagev1.VolumeAttachment, v *corev1.PersistentVolume) string {
	if v == nil || v.Spec.CSI != nil {
		return ""
	}
	for _, id := range cluster.InTreeIDs(v) {
		last := id[strings.LastIndex(id, "/")+1:]
		for _, handle := range append([]string{id, last}, gceHandles(v, id)...) {
			if handle != "" && a.Name == NameOf(a.Spec.Attacher, handle, a.Spec.NodeName) {
				return handle
			}
		}
	}
	return ""
}

// gceHandles returns the handles that a disk of GCE may have.
func gceHandles(v *corev1.PersistentVolume, disk string) []string {
	out := []string{"projects/UNSPECIFIED/zones/UNSPECIFIED/disks/" + disk}
	for _, label := range []string{corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone} {
		zone, _, _ := strings.Cut(v.Labels[label], "__")
		if zone == "" {
			continue
		}
		region := zone[:max(strings.LastIndex(zone, "-"), 0)]
		out = append(out, "projects/UNSPECIFIED/zones/"+zone+"/disks/"+disk,
			"projects/UNSPECIFIED/regions/"+region+"/disks/"+disk)
	}
	return out
}
