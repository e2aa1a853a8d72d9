// Package scheduling judges what placement, or a cluster's scheduler, says of a Pod without a node: what of it is
// about the Pod's volumes, and who can change that.
//
// Life cycle: Facts are what was read, and are asked about one Pod after the other.
package scheduling
