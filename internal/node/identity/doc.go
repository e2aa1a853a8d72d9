// Package identity is what the cluster knows of a node: its Node and CSINode, the
// Lease that says that it lives, which volumes it uses, and the drivers that have
// registered on it.
//
// Life cycle: New makes it; Start writes the Node; Run keeps everything as it is to
// be until its context ends. What is written stays when it ends.
package identity
