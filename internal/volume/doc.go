// Package volume holds the words of the domain: names, annotations,
// finalizers, outcomes and reasons. It holds no deeds: nothing here reads a
// clock, a file, a network or a cluster, so every other package may import it.
package volume
