// Package node runs a node of a cluster: a kubelet and a containerd with real containers, in their own namespaces, so
// only control groups are left on the host, which it removes. Images are made from files; nothing is pulled.
package node
