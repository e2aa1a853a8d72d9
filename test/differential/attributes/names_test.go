package attributes

import "volplane.dev/volplane/test/internal/differential"

// Short names of what comparisons are made of.
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
