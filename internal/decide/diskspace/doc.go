// Package diskspace decides about the disk space of the control plane: when its database is compacted and defragmented,
// when new objects are refused so that others can still be deleted, and how much of the disk is reserved. For an etcd
// that others run it decides what is refused when it is nearly full, or has no quorum.
package diskspace
