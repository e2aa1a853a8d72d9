// Package garbage runs Kubernetes' own garbage collector for all resources of the API
// server: it deletes the dependents of deleted objects and completes foreground and
// orphaning deletions.
package garbage
