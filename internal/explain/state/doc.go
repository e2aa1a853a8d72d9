// Package state holds what was read of a cluster to explain it: the lists of objects and what is told beside them.
//
// Life cycle: who asks, or a state file, fills Objects; whoever explains reads them and changes nothing.
package state
