// Package state holds what was read of a cluster to explain it: the lists of objects and further information about
// them.
//
// Life cycle: a caller, or a state file, fills Objects; the packages that explain read them and change nothing.
package state
