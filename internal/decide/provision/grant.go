package provision

import (
	"slices"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Grants says whether a ReferenceGrant lets the claims of a namespace have the data of a source. One that is being
// deleted does not: its owner has withdrawn it.
func Grants(g *cluster.ReferenceGrant, namespace string, source cluster.DataSource) bool {
	return g.Namespace == source.Namespace && g.DeletionTimestamp == nil &&
		slices.Contains(g.Spec.From, cluster.ReferenceGrantFrom{Kind: "PersistentVolumeClaim", Namespace: namespace}) &&
		slices.ContainsFunc(g.Spec.To, func(to cluster.ReferenceGrantTo) bool {
			return to.Group == source.Group && to.Kind == source.Kind && (to.Name == "" || to.Name == source.Name)
		})
}

// refused says that no grant lets the claims of a namespace have the data of a source. It does not show the owner of
// the claim whether the source exists.
func refused(namespace string, source cluster.DataSource) string {
	return source.Kind + " " + source.Key() + ": no ReferenceGrant of namespace " + source.Namespace +
		" lets claims of namespace " + namespace + " use it"
}

// From returns the object that the data of an intent's volume come from.
func (in *Intent) From() cluster.DataSource {
	s := cluster.DataSource{Namespace: in.Claim.Namespace, Name: in.SourceName}
	if in.SourceNamespace != "" {
		s.Namespace = in.SourceNamespace
	}
	switch {
	case in.Source != "":
		s.Kind = "PersistentVolumeClaim"
	case in.Snapshot != "":
		s.Group, s.Kind = volume.GroupSnapshot, volume.KindSnapshot
	default:
		return cluster.DataSource{}
	}
	return s
}
