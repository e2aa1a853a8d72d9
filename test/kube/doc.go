// Package kube lets Kubernetes be the judge: its kube-controller-manager and
// its provisioner run beside, or in the place of, controllers of volplane, over
// volplane's API server, or all of them in a cluster that is Kubernetes' own:
// etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
package kube
