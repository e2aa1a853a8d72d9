// Package placement gives Pods without a node one where their volumes can be.
// It stands where a cluster has its scheduler.
package placement
