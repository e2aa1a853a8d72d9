package attach

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// Pair is a volume on a node, both by the names that their driver has for them.
type Pair struct{ Handle, NodeID string }

// PublishedFacts is what a driver says is attached, and what the API says.
type PublishedFacts struct {
	Driver string
	// Published is all that the driver says.
	Published map[Pair]bool
	// Settled are the attachments that were attached before the driver was
	// asked; of the others it need not know yet.
	Settled map[types.UID]bool
	// Attachments are all of the driver, those that are lost and being
	// detached included; Volumes all of its volume objects.
	Attachments []*storagev1.VolumeAttachment
	Volumes     []*corev1.PersistentVolume
	// Nodes are the nodes where the driver has registered, by its names.
	Nodes map[string]*corev1.Node
	// Suspects are what the last plan found attached for no attachment.
	Suspects map[Pair]bool
}

// Correction is something that is attached, or not, against what the API says.
type Correction struct {
	Attachment *storagev1.VolumeAttachment
	Volume     *corev1.PersistentVolume
	Because    volume.Because
}

// PublishedPlan is what is done about the differences.
type PublishedPlan struct {
	// Again are attachments to attach once more; Undo are attachments that do
	// not exist, as they would have been, to be detached.
	Again, Undo []Correction
	// Suspects are to be handed to the next decision.
	Suspects map[Pair]bool
	Because  volume.Because
}

// Published decides about what a driver says of its volumes. What is attached
// for no attachment is detached when it is found twice, because an attach or a
// detach may be under way; and only if volume and node are ours: other clusters
// may share the driver's storage.
func Published(f PublishedFacts) PublishedPlan {
	p := PublishedPlan{Suspects: map[Pair]bool{}, Because: volume.Because{
		Reason: volume.ReasonNothingToDo, Message: "driver " + f.Driver + " has attached what it should have",
	}}
	byName, byHandle := map[string]*corev1.PersistentVolume{}, map[string]*corev1.PersistentVolume{}
	for _, v := range f.Volumes {
		byName[v.Name], byHandle[v.Spec.CSI.VolumeHandle] = v, v
	}
	ids := map[string]string{}
	for id, n := range f.Nodes {
		ids[n.Name] = id
	}
	asked := map[Pair]bool{}
	for _, a := range f.Attachments {
		pair := pairOf(a, byName[sourceOf(a)], ids)
		asked[pair], asked[Pair{pair.Handle, ids[a.Spec.NodeName]}] = true, true
		if v := byHandle[pair.Handle]; f.vanished(a, pair, v) {
			p.Again = append(p.Again, Correction{Attachment: a, Volume: v, Because: volume.Because{
				Reason: volume.ReasonAttachmentVanished, Next: f.Driver,
				Message: "driver " + f.Driver + " says that volume " + v.Name + " is not attached to node " + a.Spec.NodeName +
					": it is attached again",
			}})
		}
	}
	for pair := range f.Published {
		if v, n := byHandle[pair.Handle], f.Nodes[pair.NodeID]; v != nil && n != nil && !asked[pair] {
			p.unasked(f, pair, v, n)
		}
	}
	slices.SortFunc(p.Undo, func(a, b Correction) int { return cmp.Compare(a.Attachment.Name, b.Attachment.Name) })
	for _, c := range slices.Concat(p.Undo, p.Again) {
		p.Because = c.Because
	}
	return p
}

// vanished says whether an attachment that has been attached for long enough,
// and is to stay so, is not known to the driver.
func (f PublishedFacts) vanished(a *storagev1.VolumeAttachment, pair Pair, v *corev1.PersistentVolume) bool {
	if v == nil || v.DeletionTimestamp != nil || pair.NodeID == "" {
		return false
	}
	return a.Status.Attached && a.DeletionTimestamp == nil && f.Settled[a.UID] && !f.Published[pair]
}

func (p *PublishedPlan) unasked(f PublishedFacts, pair Pair, v *corev1.PersistentVolume, n *corev1.Node) {
	switch {
	case InUse(n, volume.UniqueName(f.Driver, pair.Handle)):
		// A Pod there still needs it, and an attachment will come.
	case !f.Suspects[pair]:
		p.Suspects[pair] = true
	default:
		p.Undo = append(p.Undo, Correction{Attachment: unasked(pair, v, n.Name), Volume: v, Because: volume.Because{
			Reason: volume.ReasonUnaskedAttachment, Next: f.Driver,
			Message: "driver " + f.Driver + " says that volume " + v.Name + " is attached to node " + n.Name +
				", which nobody asked for: it is detached",
		}})
	}
}

// unasked returns an attachment that does not exist, as it would be while it is
// detached.
func unasked(pair Pair, v *corev1.PersistentVolume, node string) *storagev1.VolumeAttachment {
	driver := v.Spec.CSI.Driver
	a, _ := Recorded(&storagev1.VolumeAttachment{
		// No object has this uid: what is written to it goes nowhere.
		ObjectMeta: metav1.ObjectMeta{Name: NameOf(driver, pair.Handle, node), UID: "unasked"},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
		},
	}, Plan{NodeID: pair.NodeID, Record: recordFrom(v)})
	return a
}

// pairOf returns what an attachment is about, by what it records or, failing
// that, by what is known of its volume and node.
func pairOf(a *storagev1.VolumeAttachment, v *corev1.PersistentVolume, ids map[string]string) Pair {
	p := Pair{NodeID: cmp.Or(a.Annotations[volume.AnnNodeID], ids[a.Spec.NodeName])}
	if r, _ := RecordOf(a); r != nil {
		p.Handle = r.Handle
	} else if v = SourceOf(a, v); v != nil && v.Spec.CSI != nil {
		p.Handle = v.Spec.CSI.VolumeHandle
	}
	return p
}
