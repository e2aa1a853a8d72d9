// Package identity maintains the objects that represent a node in the API: the Node with volumesInUse,
// the CSINode with its registered drivers, and the Lease.
//
// Life cycle: New makes a Node; Start writes its object; Run maintains all objects until its context
// ends. They stay when it ends.
package identity
