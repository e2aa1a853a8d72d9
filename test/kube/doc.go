// Package kube compares volplane with Kubernetes' own programs. Its kube-controller-manager, sidecars and
// kubelet run beside, or in place of, parts of volplane: with volplane's API server, or in a cluster with
// Kubernetes' etcd, kube-apiserver and kube-scheduler.
package kube
