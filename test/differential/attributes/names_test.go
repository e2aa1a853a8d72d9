package attributes

import "volplane.dev/volplane/test/internal/differential"

// These are short names for the parts of comparisons.
type (
	design     = differential.Design
	dice       = differential.Dice
	difference = differential.Difference
	fault      = differential.Fault
	op         = differential.Op
	row        = differential.Row
	sequence   = differential.Sequence
	side       = differential.Side
	state      = differential.State
	topic      = differential.Topic
)
