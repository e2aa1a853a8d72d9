// Package resize decides how a claim grows: first the volume at the driver, then, if the driver requires it, the
// filesystem on the node that uses it.
package resize
