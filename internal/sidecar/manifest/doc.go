// Package manifest returns, and prints, the objects with which a CSI driver and volplane run in a
// Kubernetes cluster.
//
// Life cycle: Objects depends on its arguments only; YAML prints its result for kubectl. Nothing is
// read, and nothing is sent to a cluster.
package manifest
