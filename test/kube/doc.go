// Package kube has the controllers of volplane, and what `volplane manifests` prints, work in clusters of Kubernetes.
package kube
