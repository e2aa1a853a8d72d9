package migrate

import (
	corev1 "k8s.io/api/core/v1"
)

// Journal is what is written down before the first object is touched. It is
// all that is needed to go on, or to go back, wherever the work was broken off.
type Journal struct {
	// Volume and Claim are the objects as they were. Claim is nil when the
	// volume had none.
	Volume *corev1.PersistentVolume      `json:"volume"`
	Claim  *corev1.PersistentVolumeClaim `json:"claim,omitempty"`
	// Back says that the objects are to become again what they were.
	Back bool `json:"back,omitempty"`
	// Done says that the last step has been made.
	Done bool `json:"done,omitempty"`
}

// Facts are what is known about one volume. Objects are the API server's and
// complete: what is saved of them is made again of them.
type Facts struct {
	// Name is the volume's.
	Name string
	// Journal is nil when nothing was begun.
	Journal *Journal
	// Volume is nil when there is none of that name now; Claim is the one that
	// the volume, or else the saved one, names.
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
	// Pods are the names of the Pods that use the claim and have not ended.
	Pods []string
	// Nodes are the names of the nodes that the volume is attached to, or that
	// say that they use it.
	Nodes []string
	// Served says that there is a CSIDriver object of the driver that the
	// volume goes to.
	Served bool
}

// Verb is what is done next.
type Verb string

// The verbs, in the order in which they come.
const (
	// Refuse is an end: nothing was done now, a user has to act.
	Refuse Verb = "refuse"
	// Wait says that the next step is somebody else's.
	Wait Verb = "wait"
	// Save writes the journal of the Step.
	Save Verb = "save"
	// Keep has the volume outlive its claim (reclaim policy Retain).
	Keep Verb = "keep"
	// DeleteClaim and DeleteVolume delete the object of the Facts, and no other
	// one of its name.
	DeleteClaim  Verb = "delete claim"
	DeleteVolume Verb = "delete volume"
	// CreateVolume and CreateClaim create the object of the Step.
	CreateVolume Verb = "create volume"
	CreateClaim  Verb = "create claim"
	// Reserve has the volume name its claim without the uid of the one that is
	// gone, so that the one to come can have it.
	Reserve Verb = "reserve"
	// Policy gives the volume its old reclaim policy back.
	Policy Verb = "policy"
	// Finish marks the journal as done; on the way back there is nothing left to
	// go back to, and it is deleted.
	Finish Verb = "finish"
	// Nothing is an end: all is as it was asked for.
	Nothing Verb = "nothing"
)
