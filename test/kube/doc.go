// Package kube runs volplane's controllers, and the manifests that `volplane manifests` prints, in clusters of
// Kubernetes.
package kube
