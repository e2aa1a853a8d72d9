package bind

import (
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// Event says whether a plan's reason is told to the object's owner.
type Event int

// How loud a reason is.
const (
	Silent Event = iota
	Normal
	Warning
)

// Write is one write: exactly one field is set, the object as it is to be.
type Write struct {
	Volume, VolumeStatus *corev1.PersistentVolume
	Claim, ClaimStatus   *corev1.PersistentVolumeClaim
}

// Plan is what to write, in this order, and why.
type Plan struct {
	Writes  []Write
	Because volume.Because
	Event   Event
	// Ask is the driver that a provisioner of this process is asked to use.
	Ask string
}

func wait(reason volume.Reason, event Event, next, message string, writes ...Write) Plan {
	return Plan{Writes: writes, Event: event, Because: volume.Because{Reason: reason, Message: message, Next: next}}
}

// pending returns the write that makes a claim Pending, if it is not.
func pending(claim *corev1.PersistentVolumeClaim) []Write {
	return phase(claim, corev1.ClaimPending)
}

// phase returns the write that gives an unbound claim its phase: it has no
// capacity and no access modes then.
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
