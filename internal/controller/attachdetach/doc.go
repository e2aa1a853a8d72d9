// Package attachdetach makes and deletes VolumeAttachments for what Pods use on
// each node, and tells the nodes in their status which volumes they may mount.
//
// Its keys are nodes, so that everything that changes for a node travels in one
// patch of its status. What a node's look decides is made and deleted under keys
// of its own, many at once, and remembered until the caches show it, so that
// nothing is asked for twice. A volume that only one node may have is reserved in
// memory from the decision until its attachment can be seen, because two nodes
// are decided about at the same time.
package attachdetach
