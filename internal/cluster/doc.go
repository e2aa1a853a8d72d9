// Package cluster defines View, by which the objects of a cluster are looked up. Decisions gather
// their facts from a View, so that the controllers, which have live caches, and `volplane why`,
// which has lists that it has just read, decide by the same facts.
//
// Life cycle: a View consists of one Objects for each kind: a cache of package kube, or a Snapshot
// of a list. Nothing here changes an object; returned objects are shared.
package cluster
