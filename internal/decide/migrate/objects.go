package migrate

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/volume"
)

// target returns the volume with its new source: that of the bridge or, on the way back, of the Flex
// plugin. Its reclaim policy is Retain until the move is done.
func (j *Journal) target() (*corev1.PersistentVolume, error) {
	pv := replacement(j.Volume)
	if j.Back {
		return pv, nil
	}
	name, err := flex.ParseName(pv.Spec.FlexVolume.Driver)
	if err == nil {
		_, err = name.CSI()
	}
	if err != nil {
		return nil, err
	}
	source := flex.SourceOf(pv)
	if ref := source.NodePublishSecretRef; ref != nil && ref.Namespace == "" {
		return nil, fmt.Errorf("its Secret %s has no namespace, and it has no claim whose namespace it could be", ref.Name)
	}
	pv.Spec.FlexVolume, pv.Spec.CSI = nil, source
	return pv, nil
}

// Target returns the volume as the bridge will serve it, and its claim, as `plan` shows them. It
// fails if the bridge cannot serve the driver.
func Target(
	pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim,
) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, error) {
	j := Journal{Volume: pv}
	made, err := j.target()
	if err != nil {
		return nil, nil, fmt.Errorf("volume %s: %w", pv.Name, err)
	}
	made.Spec.PersistentVolumeReclaimPolicy = pv.Spec.PersistentVolumeReclaimPolicy
	if claim == nil {
		return made, nil, nil
	}
	return made, replacementClaim(claim, pv.Name), nil
}

// replacement returns the object that replaces a volume. Its claim reference has no UID, because the
// claim will have a new one.
func replacement(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	spec := pv.Spec.DeepCopy()
	spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	if ref := spec.ClaimRef; ref != nil {
		spec.ClaimRef = &corev1.ObjectReference{
			APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name,
		}
	}
	// The reference must count as set by a user: otherwise the binder removes it while the claim
	// does not exist.
	out := &corev1.PersistentVolume{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{
			Name: pv.Name, Labels: maps.Clone(pv.Labels), Annotations: without(pv.Annotations, volume.AnnBoundByController),
		},
		Spec: *spec,
	}
	out.Annotations[volume.AnnMigratedFrom] = string(pv.UID)
	return out
}

// replacementClaim returns the claim that replaces another one.
func replacementClaim(c *corev1.PersistentVolumeClaim, pv string) *corev1.PersistentVolumeClaim {
	spec := c.Spec.DeepCopy()
	spec.VolumeName = pv
	return &corev1.PersistentVolumeClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{
			Name: c.Name, Namespace: c.Namespace, Labels: maps.Clone(c.Labels), OwnerReferences: c.OwnerReferences,
			Annotations: without(c.Annotations, volume.AnnBindCompleted, volume.AnnBoundByController),
		},
		Spec: *spec,
	}
}

// without returns a copy of annotations without some of them.
func without(annotations map[string]string, names ...string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, annotations)
	for _, n := range names {
		delete(out, n)
	}
	return out
}
