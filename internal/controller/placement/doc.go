// Package placement chooses nodes for Pods, where their volumes can be. It does the work that the
// scheduler does in a cluster.
package placement
