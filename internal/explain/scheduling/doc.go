// Package scheduling explains why a Pod has no node, from the words of placement or of a cluster's
// scheduler: which part is about the Pod's volumes, and who acts next. It also explains a Pod on a node where its
// volumes cannot be used.
//
// Life cycle: Facts hold the objects that were read; their methods are called for one Pod after the
// other.
package scheduling
