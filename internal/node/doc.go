// Package node is the node agent: it does for the consumers of one host what a
// kubelet does for the volumes of its Pods.
//
// Life cycle: New checks the options; Run locks the root directory, reads the
// journal, fills the caches, makes the Node, takes away what nobody owns, and
// then registers drivers and brings volumes to Pods until its context ends.
// Mounts stay when it ends, and the next Run takes them over.
//
// One volume is worked on by one goroutine at a time (gather, decide/mount,
// apply); volumes are independent of each other, and a driver that hangs holds
// up its own volumes only. Pods are told what became of their volumes in a
// condition, and are deleted when they are to go and none of their volumes is
// left.
package node
