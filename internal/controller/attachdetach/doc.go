// Package attachdetach creates and deletes VolumeAttachments for the volumes that Pods use on each
// node, and writes to the nodes' status which volumes they may mount.
//
// Its main keys are nodes, so that one patch of a node's status has all changes of the node. The attachments that a
// node needs created or deleted have keys of their own: many are written in parallel, and memory holds them until the
// caches show them, which keeps any from being requested twice. A volume that only one node may use is reserved in
// memory from the decision until the caches show its attachment, because two nodes may be reconciled at the same time.
package attachdetach
