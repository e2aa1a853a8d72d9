package migrate

import (
	corev1 "k8s.io/api/core/v1"
)

// Journal is saved before the first change. It suffices to continue or undo an interrupted move.
type Journal struct {
	// Volume and Claim are the objects before the move. Claim is nil if the volume had none.
	Volume *corev1.PersistentVolume      `json:"volume"`
	Claim  *corev1.PersistentVolumeClaim `json:"claim,omitempty"`
	// Back says that the volume is being moved back.
	Back bool `json:"back,omitempty"`
	// Done says that the last step was done.
	Done bool `json:"done,omitempty"`
}

// Facts is what a decision about one volume depends on. Objects must be complete and fresh from the
// API server, because they are saved and created anew.
type Facts struct {
	// Name is the name of the volume.
	Name string
	// Journal is nil if the move was not begun.
	Journal *Journal
	// Volume is the PersistentVolume with the name, or nil. Claim is the claim that it refers to,
	// or else the saved volume.
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
	// Pods are the names of the Pods that use the claim and have not ended.
	Pods []string
	// Nodes are the names of the nodes that the volume is attached to, or that report it in use.
	Nodes []string
	// Served says that the CSIDriver object of the new driver exists.
	Served bool
}

// Verb is the kind of a step.
type Verb string

// The verbs, in the order of the steps.
const (
	// Refuse: nothing is done, and a user has to act.
	Refuse Verb = "refuse"
	// Wait: another component has to act.
	Wait Verb = "wait"
	// Save: write the journal of the Step.
	Save Verb = "save"
	// Keep: set the reclaim policy Retain, so that the volume survives the deletion of its claim.
	Keep Verb = "keep"
	// DeleteClaim and DeleteVolume: delete the object of the Facts, by its UID.
	DeleteClaim  Verb = "delete claim"
	DeleteVolume Verb = "delete volume"
	// CreateVolume and CreateClaim: create the object of the Step.
	CreateVolume Verb = "create volume"
	CreateClaim  Verb = "create claim"
	// Reserve: remove the UID of the deleted claim from the volume's reference, so that the new
	// claim can bind.
	Reserve Verb = "reserve"
	// Policy: restore the volume's reclaim policy.
	Policy Verb = "policy"
	// Finish: mark the journal as done; after a move back, delete it.
	Finish Verb = "finish"
	// Nothing: everything is as requested.
	Nothing Verb = "nothing"
)
