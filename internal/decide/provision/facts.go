package provision

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// ClaimFactsOf adds to what is known of a claim what a view has. Known are the claim, or the intent of one that was
// deleted, whether its volume may exist, the options, and as the driver the one that the binder has asked within the
// process, if any. The caller adds the facts about the driver, and about sources that no view has, or sets Partial.
func ClaimFactsOf(view cluster.View, f ClaimFacts) ClaimFacts {
	if f.Settles() {
		f.Driver = f.Intent.Driver
		f.Saved, _ = view.Volumes.Get(f.Intent.Name)
		return f
	}
	claim := f.Claim
	f.Saved, f.Taken = savedFor(view, claim, f.Options.NameOf(claim))
	f.Source.AnyMode = f.Options.AllowModeConversion
	f.Driver = cmp.Or(ProvisionerOf(claim), f.Driver)
	if name, _ := bind.ClassOf(claim); name != "" {
		f.Class, _ = view.Classes.Get(name)
	}
	f.Source.OtherNamespaces = f.Options.OtherNamespaces
	if from := cluster.SourceOf(claim); !from.IsElsewhere(claim) {
		f.Source.Look(view, from)
	}
	return f
}

// Look adds the claim to clone and its volume. For a source in another namespace, only a caller who has read a grant
// may call it.
func (s *Source) Look(view cluster.View, from cluster.DataSource) {
	if !from.IsClaim() {
		return
	}
	if s.Claim, _ = view.Claims.Get(from.Key()); s.Claim != nil {
		s.Volume, _ = view.Volumes.Get(s.Claim.Spec.VolumeName)
	}
}

// savedFor returns the volume object of a claim, whatever its name is: the options may have been others when it was
// made. Without one, it returns an object that has the name and is another claim's.
func savedFor(
	view cluster.View, claim *corev1.PersistentVolumeClaim, name string,
) (saved, taken *corev1.PersistentVolume) {
	for _, v := range view.Volumes.By(cluster.VolumesByClaim, cluster.Key(claim)) {
		if Owns(claim.UID, v) {
			return v, nil
		}
	}
	taken, _ = view.Volumes.Get(name)
	return nil, taken
}

// Settles says whether the decision only depends on the intent, its volume and its driver.
func (f ClaimFacts) Settles() bool { return f.Intent != nil && !f.Reopens() }

// PlacesOf gathers the facts for the topology requirement of the claim's volume.
func (f ClaimFacts) PlacesOf(view cluster.View) topology.Facts {
	t := f.places()
	t.Only = f.Scope.Node
	for _, n := range view.CSINodes.List() {
		t.CSINodes[n.Name] = n
		if node, ok := view.Nodes.Get(n.Name); ok {
			t.Nodes[n.Name] = node
		}
	}
	return t
}

// PlaceOf returns the same for a driver that has told the segment of the scope's node, whatever the cluster's objects
// say of it: then this node is all that there is.
func (f ClaimFacts) PlaceOf(place topology.Segment) topology.Facts {
	t, node := f.places(), f.Scope.Node
	t.Selected = node
	t.Nodes[node] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: place}}
	t.CSINodes[node] = &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: f.Driver, TopologyKeys: slices.Sorted(maps.Keys(place))},
	}}}
	return t
}

func (f ClaimFacts) places() topology.Facts {
	t := topology.Facts{
		Driver: f.Driver, Claim: f.Claim.Name, Selected: volume.SelectedNode(f.Claim.Annotations),
		Strict: f.Options.StrictTopology, NotImmediate: f.Options.WithoutImmediateTopology,
		Nodes: map[string]*corev1.Node{}, CSINodes: map[string]*storagev1.CSINode{},
	}
	if f.Class != nil {
		t.Allowed = f.Class.AllowedTopologies
	}
	return t
}

// VolumeFactsOf gathers the facts about a volume. The caller adds Reachable and Lacks.
func VolumeFactsOf(view cluster.View, v *corev1.PersistentVolume) VolumeFacts {
	f := VolumeFacts{Volume: v}
	if r := v.Spec.ClaimRef; r != nil {
		f.Claim, _ = view.Claims.Get(r.Namespace + "/" + r.Name)
	}
	for _, same := range sameHandle(view, v) {
		for _, a := range view.Attachments.By(cluster.AttachmentsByVolume, same.Name) {
			f.Attachments = append(f.Attachments, a.Name)
		}
		if same.Name != v.Name && !goes(same) {
			f.Sharer = same.Name
		}
	}
	return f
}

// sameHandle returns a volume's object, and the others that have its handle.
func sameHandle(view cluster.View, v *corev1.PersistentVolume) []*corev1.PersistentVolume {
	all := []*corev1.PersistentVolume{v}
	if v.Spec.CSI == nil {
		return all
	}
	for _, same := range view.Volumes.By(cluster.VolumesByHandle, volume.Key(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)) {
		if same.Name != v.Name {
			all = append(all, same)
		}
	}
	return all
}

// goes says whether an object itself waits for the deletion of its volume.
func goes(v *corev1.PersistentVolume) bool {
	return bind.IsReleased(v) && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}
