package cluster

import corev1 "k8s.io/api/core/v1"

// InTreeIDs returns what a volume of a plugin of Kubernetes' own is called there, if a driver may have taken the
// plugin's place.
func InTreeIDs(v *corev1.PersistentVolume) []string {
	var out []string
	s := v.Spec.PersistentVolumeSource
	if s.AWSElasticBlockStore != nil {
		out = append(out, s.AWSElasticBlockStore.VolumeID)
	}
	if s.GCEPersistentDisk != nil {
		out = append(out, s.GCEPersistentDisk.PDName)
	}
	if s.AzureDisk != nil {
		out = append(out, s.AzureDisk.DataDiskURI)
	}
	if s.Cinder != nil {
		out = append(out, s.Cinder.VolumeID)
	}
	if s.VsphereVolume != nil {
		out = append(out, s.VsphereVolume.VolumePath)
	}
	if s.PortworxVolume != nil {
		out = append(out, s.PortworxVolume.VolumeID)
	}
	return out
}
