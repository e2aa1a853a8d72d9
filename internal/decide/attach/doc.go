// Package attach decides which volumes are attached to which node: which volumes the node's Pods need, what exists,
// what may be detached when, and which Pod has to wait for which.
package attach
