package attach

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// Pair is a volume and a node, both by the names of their driver.
type Pair struct{ Handle, NodeID string }

// PublishedFacts is what a driver and the API say about attachments.
type PublishedFacts struct {
	Driver string
	// Published is everything that the driver lists.
	Published map[Pair]bool
	// Settled are the attachments that were attached before the driver was queried; it need not list the others yet.
	Settled map[types.UID]bool
	// Attachments are all of the driver, including those that are lost or being detached; Volumes all of its volume
	// objects for which it can be called here.
	Attachments []*storagev1.VolumeAttachment
	Volumes     []*corev1.PersistentVolume
	// Nodes are the nodes where the driver has registered, by its names.
	Nodes map[string]*corev1.Node
	// Suspects are what the last plan found attached for no attachment.
	Suspects map[Pair]bool
}

// Correction is a difference between driver and API that is corrected.
type Correction struct {
	Attachment *storagev1.VolumeAttachment
	Volume     *corev1.PersistentVolume
	// Cause is the driver's answer about an attachment that it does not know.
	Cause   string
	Because volume.Because
}

// PublishedPlan has the corrections.
type PublishedPlan struct {
	// Again are attachments to attach again; Undo are attachments that do not exist, in the form that they would have, to
	// be detached.
	Again, Undo []Correction
	// Agreed are attachments whose status says that they are not attached, and which the driver lists.
	Agreed []*storagev1.VolumeAttachment
	// Suspects must be passed to the next decision.
	Suspects map[Pair]bool
	Because  volume.Because
}

// Published compares the driver's list of published volumes with the API. A volume that is published
// without an attachment is detached if it is found twice, because an attach or detach may be in flight,
// and only if volume and node are ours: other clusters may share the driver's storage.
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
		if v := byHandle[pair.Handle]; f.missing(a, pair, v) {
			p.Again = append(p.Again, Correction{Attachment: a, Volume: v})
		} else if f.agrees(a, pair) {
			p.Agreed = append(p.Agreed, a)
		}
	}
	for pair := range f.Published {
		if v, n := byHandle[pair.Handle], f.Nodes[pair.NodeID]; v != nil && n != nil && !asked[pair] {
			p.detachUnknown(f, pair, v, n)
		}
	}
	f.explain(p.Again)
	slices.SortFunc(p.Undo, func(a, b Correction) int { return cmp.Compare(a.Attachment.Name, b.Attachment.Name) })
	for _, c := range slices.Concat(p.Undo, p.Again) {
		p.Because = c.Because
	}
	return p
}

// missing says whether a volume that has been attached for long enough, and shall stay so, is not
// published according to the driver.
func (f PublishedFacts) missing(a *storagev1.VolumeAttachment, pair Pair, v *corev1.PersistentVolume) bool {
	if v == nil || v.DeletionTimestamp != nil || pair.NodeID == "" {
		return false
	}
	return a.Status.Attached && a.DeletionTimestamp == nil && f.Settled[a.UID] && !f.Published[pair]
}

// agrees says whether an attachment with an error is published, as it should be, according to the driver.
func (f PublishedFacts) agrees(a *storagev1.VolumeAttachment, pair Pair) bool {
	return a.Status.Attached && a.Status.AttachError != nil && a.DeletionTimestamp == nil && f.Published[pair]
}

// explain describes attachments that their driver does not list, and where the driver has their volumes instead.
func (f PublishedFacts) explain(vanished []Correction) {
	if len(vanished) == 0 {
		return
	}
	elsewhere := map[string][]string{}
	for _, c := range vanished {
		elsewhere[c.Volume.Spec.CSI.VolumeHandle] = nil
	}
	for pair := range f.Published {
		if nodes, asked := elsewhere[pair.Handle]; asked {
			name := fmt.Sprintf("%.100q", pair.NodeID)
			if n := f.Nodes[pair.NodeID]; n != nil {
				name = n.Name
			}
			elsewhere[pair.Handle] = append(nodes, name)
		}
	}
	for i, c := range vanished {
		cause := "driver " + f.Driver + " does not list it there"
		if nodes := elsewhere[c.Volume.Spec.CSI.VolumeHandle]; len(nodes) > 0 {
			slices.Sort(nodes)
			cause += ", but on node " + strings.Join(nodes[:min(len(nodes), maxNodes)], ", ")
		}
		vanished[i].Cause = cause + "; it is attached again"
		vanished[i].Because = Failed(c.Attachment, false, volume.Answer{Text: vanished[i].Cause})
	}
}

// maxNodes bounds the nodes that one reason names.
const maxNodes = 5

func (p *PublishedPlan) detachUnknown(f PublishedFacts, pair Pair, v *corev1.PersistentVolume, n *corev1.Node) {
	switch {
	case InUse(n, volume.UniqueName(f.Driver, pair.Handle)):
		// A Pod there still needs it, and an attachment will come.
	case !f.Suspects[pair]:
		p.Suspects[pair] = true
	default:
		p.Undo = append(p.Undo, Correction{Attachment: attachmentOf(pair, v, n.Name), Volume: v, Because: volume.Say(
			volume.ReasonUnaskedAttachment, volume.Driver(f.Driver), "driver "+f.Driver+" says that volume "+v.Name+
				" is attached to node "+n.Name+", which no Pod there needs: it is detached")})
	}
}

// attachmentOf returns an attachment that does not exist, in the state of one that is being detached.
func attachmentOf(pair Pair, v *corev1.PersistentVolume, node string) *storagev1.VolumeAttachment {
	driver := v.Spec.CSI.Driver
	a, _ := Recorded(&storagev1.VolumeAttachment{
		// No object has this UID: writes to it have no effect.
		ObjectMeta: metav1.ObjectMeta{Name: NameOf(driver, pair.Handle, node), UID: "unasked"},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
		},
	}, Plan{NodeID: pair.NodeID, Record: recordFrom(v)})
	return a
}

// pairOf returns the volume and the node of an attachment by its record, otherwise by their objects.
func pairOf(a *storagev1.VolumeAttachment, v *corev1.PersistentVolume, ids map[string]string) Pair {
	p := Pair{NodeID: cmp.Or(a.Annotations[volume.AnnNodeID], ids[a.Spec.NodeName])}
	if r, _ := RecordOf(a); r != nil {
		p.Handle = r.Handle
	} else {
		_, p.Handle = About(a, v)
	}
	return p
}
