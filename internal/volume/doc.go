// Package volume holds the vocabulary of the project: names, annotations, finalizers,
// outcomes and reasons. Nothing here reads a clock, a file, a network or a cluster, so
// that every other package may import it.
package volume
