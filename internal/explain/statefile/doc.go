// Package statefile decides what a file of a cluster's state may hold: all that an explanation reads, and no secrets.
//
// Life cycle: Clean copies what was read before it is written to a file. The objects themselves are not changed.
package statefile
