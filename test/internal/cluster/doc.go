// Package cluster runs clusters made of the programs of Kubernetes, and installs drivers there with the manifests of
// `volplane manifests`.
package cluster
