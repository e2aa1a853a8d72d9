// Package kubelet derives the state of a Pod's mounts from what its kubelet writes to the Pod's
// status and to events.
//
// Life cycle: Facts hold the objects that were read; their methods are called for one Pod after the
// other.
package kubelet
