// Package kubelets combines volplane with a kubelet in a cluster of Kubernetes, and compares the calls that drivers get
// from the node agent and from the kubelet.
package kubelets
