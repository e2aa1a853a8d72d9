// Package manifest makes the objects with which a CSI driver and volplane run in
// a cluster of Kubernetes, and prints them.
//
// Life cycle: Objects is a function of its arguments alone; what it returns, YAML
// prints for kubectl. Nothing is read, and nothing is sent to a cluster.
package manifest
