package health

import (
	"time"

	"volplane.dev/volplane/internal/mount"
)

// Stats is what is known of a volume that is mounted.
type Stats struct {
	Driver, Handle, Volume string
	// ClaimNamespace and ClaimName are empty for a volume without a claim.
	ClaimNamespace, ClaimName string
	// Usage is how full it is; what the driver does not say is 0.
	Usage mount.Usage
	// Health is what is wrong with it, empty when nothing is known to be, and
	// Next who has to do something about it.
	Health, Next string
	// At is when it was looked at last.
	At time.Time
	// ailments is what the driver says of it.
	ailments string
}
