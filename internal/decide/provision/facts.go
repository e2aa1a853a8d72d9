package provision

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Begun is what only a provisioner knows of a claim; the zero value is that of anybody
// else. The fields are those of ClaimFacts.
type Begun struct {
	Intent   *Intent
	Doubtful bool
	// Asked is the driver that the binder asked for within the process.
	Asked string
}

// ClaimFactsOf gathers what is known of a claim without asking its driver or reading
// the sources of its data that no view holds: the caller adds these, or says that the
// facts are Partial. The claim may be nil when there is an intent.
func ClaimFactsOf(view cluster.View, claim *corev1.PersistentVolumeClaim, b Begun) ClaimFacts {
	f := ClaimFacts{Claim: claim, Intent: b.Intent, Doubtful: b.Doubtful}
	if f.Settles() {
		f.Driver = f.Intent.Driver
		f.Saved, _ = view.Volumes.Get(f.Intent.Name)
		return f
	}
	f.Saved, _ = view.Volumes.Get(NameOf(claim))
	if f.Driver = ProvisionerOf(claim); f.Driver == "" {
		f.Driver = b.Asked
	}
	if name, _ := bind.ClassOf(claim); name != "" {
		f.Class, _ = view.Classes.Get(name)
	}
	if IsClone(claim) {
		f.Source.Claim, _ = view.Claims.Get(claim.Namespace + "/" + claim.Spec.DataSource.Name)
		if f.Source.Claim != nil {
			f.Source.Volume, _ = view.Volumes.Get(f.Source.Claim.Spec.VolumeName)
		}
	}
	return f
}

// Settles says whether what is decided is what becomes of an intent: then nothing but
// the intent, its volume and its driver are looked at.
func (f ClaimFacts) Settles() bool { return f.Intent != nil && !f.Reopens() }

// PlacesOf gathers what the topology requirement for the claim's volume follows from.
func (f ClaimFacts) PlacesOf(view cluster.View) topology.Facts {
	t := topology.Facts{
		Driver: f.Driver, Claim: f.Claim.Name, Selected: f.Claim.Annotations[volume.AnnSelectedNode],
		Nodes: map[string]*corev1.Node{}, CSINodes: map[string]*storagev1.CSINode{},
	}
	if f.Class != nil {
		t.Allowed = f.Class.AllowedTopologies
	}
	for _, n := range view.CSINodes.List() {
		t.CSINodes[n.Name] = n
		if node, ok := view.Nodes.Get(n.Name); ok {
			t.Nodes[n.Name] = node
		}
	}
	return t
}

// VolumeFactsOf gathers the facts about a volume. Whether its driver can be called,
// only the caller knows.
func VolumeFactsOf(view cluster.View, v *corev1.PersistentVolume) VolumeFacts {
	f := VolumeFacts{Volume: v}
	if r := v.Spec.ClaimRef; r != nil {
		f.Claim, _ = view.Claims.Get(r.Namespace + "/" + r.Name)
	}
	for _, a := range view.Attachments.By(cluster.AttachmentsByVolume, v.Name) {
		f.Attachments = append(f.Attachments, a.Name)
	}
	return f
}
