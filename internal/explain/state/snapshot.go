package state

// Snapshot is what a VolumeSnapshot says; its type is served only where somebody
// has added it.
type Snapshot struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Claim is the claim that the snapshot is of; empty when its content was made by
	// hand.
	Claim string `json:"claim,omitempty"`
	// Content names the VolumeSnapshotContent; empty when there is none yet.
	Content string `json:"content,omitempty"`
	Ready   bool   `json:"ready,omitempty"`
	// Error is what the driver or the snapshot controller answered last.
	Error string `json:"error,omitempty"`
	// Deleting says that the snapshot is being deleted; Finalizers keep it.
	Deleting   bool     `json:"deleting,omitempty"`
	Finalizers []string `json:"finalizers,omitempty"`
}
