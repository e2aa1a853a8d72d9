package provision

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// TestGrants: a grant is one for claims of exactly its namespaces, to objects of exactly its kinds and names, in its
// own namespace.
func TestGrants(t *testing.T) {
	claims := cluster.DataSource{Kind: "PersistentVolumeClaim", Namespace: "shared", Name: "data"}
	snapshots := cluster.DataSource{
		Group: volume.GroupSnapshot, Kind: volume.KindSnapshot, Namespace: "shared", Name: "data",
	}
	from := func(group, kind, namespace string) cluster.ReferenceGrantFrom {
		return cluster.ReferenceGrantFrom{Group: group, Kind: kind, Namespace: namespace}
	}
	to := func(group, kind, name string) cluster.ReferenceGrantTo {
		return cluster.ReferenceGrantTo{Group: group, Kind: kind, Name: name}
	}
	team, every := from("", "PersistentVolumeClaim", "team"), to("", "PersistentVolumeClaim", "")
	for _, c := range []struct {
		argues string
		change func(*cluster.ReferenceGrant)
		source cluster.DataSource
		want   bool
	}{
		{"claims of the namespace may have all claims", func(*cluster.ReferenceGrant) {}, claims, true},
		{"which are no snapshots", func(*cluster.ReferenceGrant) {}, snapshots, false},
		{"snapshots", func(g *cluster.ReferenceGrant) {
			g.Spec.To[0] = to(volume.GroupSnapshot, volume.KindSnapshot, "")
		}, snapshots, true},
		{"snapshots of another group", func(g *cluster.ReferenceGrant) {
			g.Spec.To[0] = to("", volume.KindSnapshot, "")
		}, snapshots, false},
		{"claims of another group", func(g *cluster.ReferenceGrant) {
			g.Spec.To[0].Group = volume.GroupSnapshot
		}, claims, false},
		{"this one", func(g *cluster.ReferenceGrant) { g.Spec.To[0].Name = "data" }, claims, true},
		{"another one", func(g *cluster.ReferenceGrant) { g.Spec.To[0].Name = "dat" }, claims, false},
		{"one of several", func(g *cluster.ReferenceGrant) {
			g.Spec.To = append([]cluster.ReferenceGrantTo{to("", "Secret", "data")}, g.Spec.To...)
			g.Spec.From = append([]cluster.ReferenceGrantFrom{from("", "Pod", "team")}, g.Spec.From...)
		}, claims, true},
		{"claims of another namespace", func(g *cluster.ReferenceGrant) {
			g.Spec.From[0].Namespace = "teams"
		}, claims, false},
		{"the namespace of the grant is not that of the claim", func(g *cluster.ReferenceGrant) {
			g.Spec.From[0].Namespace = "shared"
		}, claims, false},
		{"all namespaces is none", func(g *cluster.ReferenceGrant) { g.Spec.From[0].Namespace = "*" }, claims, false},
		{"no namespace is none", func(g *cluster.ReferenceGrant) { g.Spec.From[0].Namespace = "" }, claims, false},
		{"other kinds of the namespace", func(g *cluster.ReferenceGrant) { g.Spec.From[0].Kind = "Pod" }, claims, false},
		{"claims of another group's kind", func(g *cluster.ReferenceGrant) { g.Spec.From[0].Group = "core" }, claims, false},
		{"a grant of another namespace", func(g *cluster.ReferenceGrant) { g.Namespace = "team" }, claims, false},
		{"no from", func(g *cluster.ReferenceGrant) { g.Spec.From = nil }, claims, false},
		{"no to", func(g *cluster.ReferenceGrant) { g.Spec.To = nil }, claims, false},
		{"a grant that is being deleted", func(g *cluster.ReferenceGrant) {
			g.DeletionTimestamp = &metav1.Time{}
		}, claims, false},
	} {
		g := &cluster.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "shared", Name: "g"}}
		g.Spec = cluster.ReferenceGrantSpec{
			From: []cluster.ReferenceGrantFrom{team}, To: []cluster.ReferenceGrantTo{every},
		}
		c.change(g)
		if got := Grants(g, "team", c.source); got != c.want {
			t.Errorf("%s: %v", c.argues, got)
		}
	}
}
