// Package resize decides how a claim grows: first the volume at the driver,
// then, if the driver asks for it, the filesystem on the node that uses it.
package resize
