// Package nodelife decides whether a node's agent is alive: it renews a Lease as a kubelet does,
// and a node whose Lease is not renewed is marked.
package nodelife
