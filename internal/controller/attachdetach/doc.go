// Package attachdetach makes and deletes VolumeAttachments for what Pods use on
// each node, and tells the nodes in their status which volumes they may mount.
package attachdetach
