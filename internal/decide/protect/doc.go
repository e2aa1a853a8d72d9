// Package protect decides when a claim or a volume that is being deleted may
// go.
package protect
