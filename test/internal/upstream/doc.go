// Package upstream runs the programs of Kubernetes and its sidecars in tests, and creates the objects that they work
// on.
package upstream
