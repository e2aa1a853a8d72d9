package why

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/explain/chain"
)

// Group returns what is decided about a group snapshot; false if it does not exist.
func (w Walk) Group(ns, name string) (chain.Chain, bool) {
	g := cluster.First(w.Groups, func(g *groupv1.VolumeGroupSnapshot) bool { return g.Namespace == ns && g.Name == name })
	if g == nil {
		return chain.Chain{}, false
	}
	return w.AboutGroup(g), true
}

// AboutGroup is Group for one that was read.
func (w Walk) AboutGroup(g *groupv1.VolumeGroupSnapshot) chain.Chain {
	subject := "volumegroupsnapshot/" + g.Name
	return chain.Chain{Subject: subject, Links: []chain.Link{w.group(subject, g)}}
}

// group is what the group-snapshot-controller decides, or what the group says if its content may not be read.
func (w Walk) group(subject string, g *groupv1.VolumeGroupSnapshot) chain.Link {
	failed := decide.ErrorOf(g)
	if w.SnapshotsHidden {
		return reported(decide.Groups(), subject, g, decide.IsReady(g), failed)
	}
	f := decide.FactsOf(w.View, g, metav1.NewTime(w.Now))
	// The objects were read from the API server itself.
	f.Absent = f.Content == nil
	return bound(decide.Groups(), subject, g, decide.Group(f),
		failed != "" || f.Content != nil && f.Content.Status != nil && f.Content.Status.Error != nil)
}
