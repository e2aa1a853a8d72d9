// Package kubelet judges by what a kubelet says of a Pod, in its status and in events, what becomes of the Pod's
// mounts.
//
// Life cycle: Facts are what was read, and are asked about one Pod after the other.
package kubelet
