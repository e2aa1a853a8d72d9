// Package pods writes the state of volumes into the conditions of a node's Pods, and deletes terminating
// Pods that have no volume left.
//
// Life cycle: New makes Pods; Run processes the Pods that are added until its context ends.
package pods
