// Package subject finds the objects that a chain is about, by the names that stand in it.
//
// Life cycle: a Finder is made for one chain, and reads only.
package subject
