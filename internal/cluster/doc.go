// Package cluster says what can be looked up of a cluster: a View. Decisions gather
// their facts from it, so that the controllers, which see live caches, and
// `volplane why`, which sees lists that it has just read, decide by the same facts.
//
// Life cycle: a View is made of Objects, one for each kind: a cache of package kube,
// or a Snapshot of a list. Nothing here changes an object; what is returned is
// shared.
package cluster
