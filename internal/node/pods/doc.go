// Package pods tells the Pods of a node what became of their volumes, in conditions, and
// deletes those that are to go when none of their volumes is left.
//
// Life cycle: New makes Pods; Run tells those that are added what the volumes' and the
// health's rooms know, until its context ends.
package pods
