package kubelets

import "volplane.dev/volplane/test/internal/differential"

// Short names of what comparisons are made of.
type (
	difference = differential.Difference
	row        = differential.Row
	side       = differential.Side
)
