package bind

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// ClaimFactsOf gathers the facts about a claim. Its candidates are the volumes that refer to the
// claim. The caller adds the best of the free volumes (Free.Best), and Served.
func ClaimFactsOf(view cluster.View, claim *corev1.PersistentVolumeClaim) ClaimFacts {
	f := ClaimFacts{Claim: claim, Default: DefaultClass(view.Classes.List())}
	if class, _ := ClassOf(claim); class != "" {
		f.Class, _ = view.Classes.Get(class)
	}
	if claim.Spec.VolumeName != "" {
		f.Volume, _ = view.Volumes.Get(claim.Spec.VolumeName)
		return f
	}
	f.Candidates = view.Volumes.By(cluster.VolumesByClaim, cluster.Key(claim))
	for _, p := range view.Pods.By(cluster.PodsByClaim, cluster.Key(claim)) {
		switch {
		case p.Spec.NodeName == "":
			f.Consumers = append(f.Consumers, p.Name)
		case !cluster.Finished(p):
			f.Assigned = append(f.Assigned, p.Name)
		}
	}
	return f
}

// TakesFree says whether the claim can be bound to any free volume that fits. It cannot if it names
// a volume, was bound before, or waits for its first consumer.
func (f ClaimFacts) TakesFree() bool {
	return f.Claim.Spec.VolumeName == "" && f.Claim.Annotations[volume.AnnBindCompleted] == "" && !BindsLate(f.Class)
}

// FactsWithFree gathers the facts about a claim, including the best free volume.
func FactsWithFree(view cluster.View, claim *corev1.PersistentVolumeClaim, free func() *Free) ClaimFacts {
	f := ClaimFactsOf(view, claim)
	if f.TakesFree() {
		if v := free().Best(claim, nil); v != nil {
			f.Candidates = append(slices.Clone(f.Candidates), v)
		}
	}
	return f
}

// FreeOf returns the free volumes of a view.
func FreeOf(view cluster.View) *Free {
	free := NewFree()
	for _, v := range view.Volumes.List() {
		free.Set(v)
	}
	return free
}

// VolumeFactsOf gathers the facts about a volume. The view may not show the claim yet, so the API
// server must be asked before a volume is released.
func VolumeFactsOf(view cluster.View, v *corev1.PersistentVolume) VolumeFacts {
	ref := v.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return VolumeFacts{Volume: v}
	}
	claim, _ := view.Claims.Get(ref.Namespace + "/" + ref.Name)
	return VolumeFacts{Volume: v}.With(claim)
}

// With returns the facts with another claim: the one with the name in the volume's reference, or nil.
func (f VolumeFacts) With(claim *corev1.PersistentVolumeClaim) VolumeFacts {
	f.Claim, f.Namesake = nil, nil
	switch {
	case claim == nil:
	case claim.UID == f.Volume.Spec.ClaimRef.UID:
		f.Claim = claim
	default:
		f.Namesake = claim
	}
	return f
}

// Condition returns the condition of the plan's object.
func (p Plan) Condition() volume.Condition {
	b := p.Because
	if len(p.Writes) > 0 && b.Next.IsZero() {
		b.Next = volume.Controller("binder")
	}
	return volume.Condition{Because: b, Stuck: b.Next == volume.User() && b.Reason != volume.ReasonWaitForFirstConsumer}
}

// ClassOf returns the name of a claim's class, and whether the claim has a name of a class: the
// empty name means no class, and a missing name means the default class.
func ClassOf(claim *corev1.PersistentVolumeClaim) (name string, named bool) {
	if n, ok := claim.Annotations[volume.AnnBetaStorageClass]; ok {
		return n, true
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName, true
	}
	return "", false
}

// VolumeClassOf returns the name of a volume's class.
func VolumeClassOf(v *corev1.PersistentVolume) string {
	if n, ok := v.Annotations[volume.AnnBetaStorageClass]; ok {
		return n
	}
	return v.Spec.StorageClassName
}

// DefaultClass returns the newest class that is marked as the default, or nil. Of several with the
// same age it returns the first by name.
func DefaultClass(classes []*storagev1.StorageClass) *storagev1.StorageClass {
	var best *storagev1.StorageClass
	for _, c := range classes {
		if c.Annotations[volume.AnnDefaultClass] != "true" && c.Annotations[volume.AnnBetaDefaultClass] != "true" {
			continue
		}
		if best == nil || best.CreationTimestamp.Before(&c.CreationTimestamp) ||
			best.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < best.Name {
			best = c
		}
	}
	return best
}

// BindsLate says whether a class has the binding mode WaitForFirstConsumer.
func BindsLate(c *storagev1.StorageClass) bool {
	return c != nil && c.VolumeBindingMode != nil && *c.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// Event is the type of the event that a plan records.
type Event int

// These are the types of events. Silent records none, and Lasting a normal one if the state lasts: most claims leave it
// within milliseconds.
const (
	Silent Event = iota
	Normal
	Lasting
	Warning
)

// Write is one write. Exactly one object is set: the one to write, or whose status to write.
type Write struct {
	Volume, VolumeStatus *corev1.PersistentVolume
	Claim, ClaimStatus   *corev1.PersistentVolumeClaim
	// Beside says that the write may be made at the same time as the one before, which updates a volume's status: if a
	// crash prevents one of them, the next decision repeats it.
	Beside bool
}

// Plan is a decision.
type Plan struct {
	// Writes are the writes to do, in this order, except those that are Beside others.
	Writes  []Write
	Because volume.Because
	Event   Event
	// Ask is the driver whose volume is requested from the provisioner of this process, or "".
	Ask string
}

func wait(reason volume.Reason, event Event, next volume.Actor, message string, writes ...Write) Plan {
	return Plan{Writes: writes, Event: event, Because: volume.Say(reason, next, message)}
}

// pending returns the write that makes a claim Pending, if it is not Pending yet.
func pending(claim *corev1.PersistentVolumeClaim) []Write {
	return phase(claim, corev1.ClaimPending)
}

// phase returns the write that sets a phase of a claim without capacity and access modes, if it is needed.
func phase(claim *corev1.PersistentVolumeClaim, p corev1.PersistentVolumeClaimPhase) []Write {
	if claim.Status.Phase == p && claim.Status.Capacity == nil && claim.Status.AccessModes == nil {
		return nil
	}
	c := claim.DeepCopy()
	c.Status.Phase, c.Status.Capacity, c.Status.AccessModes = p, nil, nil
	return []Write{{ClaimStatus: c}}
}

func volumePhase(v *corev1.PersistentVolume, p corev1.PersistentVolumePhase) []Write {
	if v.Status.Phase == p && v.Status.Message == "" {
		return nil
	}
	c := v.DeepCopy()
	c.Status.Phase, c.Status.Message = p, ""
	return []Write{{VolumeStatus: c}}
}
