// Package statefile decides what a file with the state of a cluster contains: everything that an
// explanation reads, and no secrets.
//
// Life cycle: Clean copies the objects before they are written to a file. It does not change them.
package statefile
