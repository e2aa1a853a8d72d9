// Package node is the node agent. It does what a kubelet does for the volumes of its Pods.
//
// Life cycle: New checks the options. Run locks the root directory, opens the journal, fills the
// caches, creates the Node, rebuilds lost journal records, and then registers drivers and mounts
// volumes until its context ends. Mounts stay when it ends, and the next Run takes them over.
//
// volumes mounts and unmounts; pods writes the result into the Pods' conditions, and deletes
// terminating Pods that have no volume left; identity writes the Node and registers drivers; health
// observes mounted volumes; leftovers rebuilds lost records.
package node
