// Package attach decides which volumes are attached to which node: what is
// wanted by the node's Pods, what exists, what may be detached when, and who
// has to wait for whom.
package attach
