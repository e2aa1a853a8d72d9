// Package node runs a node of a cluster: a kubelet and a containerd with real containers, in namespaces of
// their own, so that nothing of it is left on the host but control groups, which it removes. Images are made
// of files; nothing is pulled.
package node
