// Package garbage collects what belongs to objects that are gone, and sees to
// deletions in the foreground and to what is to be orphaned: it runs Kubernetes'
// own garbage collector over everything that the API server serves.
package garbage
