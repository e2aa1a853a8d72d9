package health

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// Stats is the state of a mounted volume.
type Stats struct {
	Driver, Handle, Volume string
	// ClaimNamespace and ClaimName are empty for a volume without a claim.
	ClaimNamespace, ClaimName string
	// Usage is how full it is; numbers that the driver does not report are 0.
	Usage mount.Usage
	// ReadOnly says that all its mounts on this host are read-only, so that it does not become fuller.
	ReadOnly bool
	// Health is what is wrong with it, empty if nothing is; Next is who has to act.
	Health string
	Next   volume.Actor
	// Told says that its driver has told how it is, and Conditions are what it told, in the form of the API.
	Told       bool
	Conditions []corev1.VolumeHealthCondition
	// At is the time of the last inspection.
	At time.Time
	// problems is what the driver reports as wrong.
	problems string
}
