package bind

import (
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

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
