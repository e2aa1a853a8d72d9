// Package nodelife decides whether a node's agent is still alive: it renews a
// Lease as a kubelet does, and a node whose Lease stands still is marked.
package nodelife
