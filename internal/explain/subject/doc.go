// Package subject finds the objects of a chain by the names in it.
//
// Life cycle: a Finder is created for one chain. It changes nothing.
package subject
