package kubelets

import "volplane.dev/volplane/test/internal/differential"

// These are short names for the parts of comparisons.
type (
	difference = differential.Difference
	row        = differential.Row
	side       = differential.Side
)
