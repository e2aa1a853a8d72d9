// Package room decides about the disk space of the control plane: when its database is compacted and
// defragmented, when new objects are refused so that others can still be deleted, and how much of
// the disk is reserved.
package room
