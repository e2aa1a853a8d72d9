// Package snapshots compares the two controllers of snapshots with the two programs of Kubernetes.
package snapshots
