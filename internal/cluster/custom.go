package cluster

import (
	"bytes"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// VolumeSnapshotContent is the custom resource with the field of KEP-5943, which the library's type does not have yet.
type VolumeSnapshotContent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   VolumeSnapshotContentSpec               `json:"spec"`
	Status *snapshotv1.VolumeSnapshotContentStatus `json:"status,omitempty"`
}

// VolumeSnapshotContentSpec is the spec of a VolumeSnapshotContent.
type VolumeSnapshotContentSpec struct {
	snapshotv1.VolumeSnapshotContentSpec `json:",inline"`

	// NodeAffinity are the places from which volumes that are made of the snapshot can be used; empty for all. It does
	// not change once it is there.
	NodeAffinity []corev1.TopologySelectorTerm `json:"nodeAffinity,omitempty"`
}

// VolumeSnapshotContentList is a list of them.
type VolumeSnapshotContentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []VolumeSnapshotContent `json:"items"`
}

// VolumeSnapshotClass is the custom resource with the field of KEP-5943.
type VolumeSnapshotClass struct {
	snapshotv1.VolumeSnapshotClass `json:",inline"`

	// AllowedTopologies are the places from which snapshots of the class are to be usable; empty if the driver chooses.
	AllowedTopologies []corev1.TopologySelectorTerm `json:"allowedTopologies,omitempty"`
}

// VolumeSnapshotClassList is a list of them.
type VolumeSnapshotClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []VolumeSnapshotClass `json:"items"`
}

// SnapshotMetadataService is the custom resource by which clients find who serves the changed blocks of a driver, whose
// name it has.
type SnapshotMetadataService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec SnapshotMetadataServiceSpec `json:"spec"`
}

// SnapshotMetadataServiceSpec is the spec of a SnapshotMetadataService.
type SnapshotMetadataServiceSpec struct {
	// Audience is what the tokens of clients must be for.
	Audience string `json:"audience"`
	// Address is where the service listens, and CACert the authority of its certificate, in PEM.
	Address string `json:"address"`
	CACert  []byte `json:"caCert"`
}

// SnapshotMetadataServiceList is a list of them.
type SnapshotMetadataServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []SnapshotMetadataService `json:"items"`
}

// DeepCopy returns a copy.
func (s *SnapshotMetadataService) DeepCopy() *SnapshotMetadataService {
	out := *s
	out.ObjectMeta, out.Spec.CACert = *s.ObjectMeta.DeepCopy(), bytes.Clone(s.Spec.CACert)
	return &out
}

// DeepCopyObject returns a copy.
func (s *SnapshotMetadataService) DeepCopyObject() runtime.Object { return s.DeepCopy() }

// DeepCopyObject returns a copy.
func (l *SnapshotMetadataServiceList) DeepCopyObject() runtime.Object {
	return &SnapshotMetadataServiceList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy(), Items: copyOf(l.Items)}
}

// DeepCopy returns a copy.
func (c *VolumeSnapshotContent) DeepCopy() *VolumeSnapshotContent {
	if c == nil {
		return nil
	}
	return &VolumeSnapshotContent{
		TypeMeta: c.TypeMeta, ObjectMeta: *c.ObjectMeta.DeepCopy(), Status: c.Status.DeepCopy(),
		Spec: VolumeSnapshotContentSpec{*c.Spec.VolumeSnapshotContentSpec.DeepCopy(), copyOf(c.Spec.NodeAffinity)},
	}
}

// DeepCopyObject returns a copy.
func (c *VolumeSnapshotContent) DeepCopyObject() runtime.Object { return c.DeepCopy() }

// DeepCopyObject returns a copy.
func (l *VolumeSnapshotContentList) DeepCopyObject() runtime.Object {
	return &VolumeSnapshotContentList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy(), Items: copyOf(l.Items)}
}

// DeepCopy returns a copy.
func (c *VolumeSnapshotClass) DeepCopy() *VolumeSnapshotClass {
	if c == nil {
		return nil
	}
	return &VolumeSnapshotClass{*c.VolumeSnapshotClass.DeepCopy(), copyOf(c.AllowedTopologies)}
}

// DeepCopyObject returns a copy.
func (c *VolumeSnapshotClass) DeepCopyObject() runtime.Object { return c.DeepCopy() }

// DeepCopyObject returns a copy.
func (l *VolumeSnapshotClassList) DeepCopyObject() runtime.Object {
	return &VolumeSnapshotClassList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy(), Items: copyOf(l.Items)}
}

func copyOf[T any, P interface {
	*T
	DeepCopy() *T
}](all []T) (out []T) {
	for i := range all {
		out = append(out, *P(&all[i]).DeepCopy())
	}
	return out
}
