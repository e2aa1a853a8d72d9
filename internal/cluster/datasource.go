package cluster

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// DataSource names the object that a claim's data come from; the zero value names none.
type DataSource struct{ Group, Kind, Namespace, Name string }

// SourceOf returns the object that a claim's data come from. If its namespace is in the claim, a ReferenceGrant may be
// needed: see IsElsewhere.
func SourceOf(c *corev1.PersistentVolumeClaim) DataSource {
	s, r := c.Spec.DataSource, c.Spec.DataSourceRef
	switch {
	case r != nil && (s == nil || ptr.Deref(r.Namespace, "") != ""):
		return DataSource{ptr.Deref(r.APIGroup, ""), r.Kind, cmp.Or(ptr.Deref(r.Namespace, ""), c.Namespace), r.Name}
	case s != nil:
		return DataSource{ptr.Deref(s.APIGroup, ""), s.Kind, c.Namespace, s.Name}
	}
	return DataSource{}
}

// IsClaim says whether the data are those of another claim's volume.
func (s DataSource) IsClaim() bool { return s.Kind == "PersistentVolumeClaim" && s.Group == "" }

// IsSnapshot says whether the data are those of a snapshot.
func (s DataSource) IsSnapshot() bool {
	return s.Kind == volume.KindSnapshot && s.Group == volume.GroupSnapshot
}

// Key returns "namespace/name".
func (s DataSource) Key() string { return s.Namespace + "/" + s.Name }

// IsElsewhere says whether the source of a claim's data is in another namespace, whose owner must allow its use.
func (s DataSource) IsElsewhere(c *corev1.PersistentVolumeClaim) bool {
	return s.Namespace != "" && s.Namespace != c.Namespace
}

// ReferenceGrant is the custom resource of Kubernetes' gateway API by which the owner of a namespace lets objects of
// other namespaces refer to objects of this one.
type ReferenceGrant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec ReferenceGrantSpec `json:"spec"`
}

// ReferenceGrantSpec is the spec of a ReferenceGrant: each of From may refer to each of To.
type ReferenceGrantSpec struct {
	From []ReferenceGrantFrom `json:"from"`
	To   []ReferenceGrantTo   `json:"to"`
}

// ReferenceGrantFrom are the objects of a kind in a namespace. The group of Kubernetes' own kinds is "".
type ReferenceGrantFrom struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
}

// ReferenceGrantTo are the objects of a kind, or one of them, in the namespace of the grant.
type ReferenceGrantTo struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name,omitempty"`
}

// ReferenceGrantList is a list of them.
type ReferenceGrantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []ReferenceGrant `json:"items"`
}

// DeepCopy returns a copy.
func (g *ReferenceGrant) DeepCopy() *ReferenceGrant {
	out := &ReferenceGrant{TypeMeta: g.TypeMeta, ObjectMeta: *g.ObjectMeta.DeepCopy()}
	out.Spec.From, out.Spec.To = slices.Clone(g.Spec.From), slices.Clone(g.Spec.To)
	return out
}

// DeepCopyObject returns a copy.
func (g *ReferenceGrant) DeepCopyObject() runtime.Object { return g.DeepCopy() }

// DeepCopyObject returns a copy.
func (l *ReferenceGrantList) DeepCopyObject() runtime.Object {
	return &ReferenceGrantList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy(), Items: copyOf(l.Items)}
}
