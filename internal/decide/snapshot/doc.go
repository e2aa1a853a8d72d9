// Package snapshot decides how snapshots of volumes are taken, bound and deleted: Snapshot about a VolumeSnapshot, and
// Claim about a claim that snapshots are taken of. A Kind has the decisions that are the same about snapshots and about
// groups of them: about a content, by Content, and about the calls of its driver, by Driver and the functions After...
// Single is the Kind of snapshots; that of groups is in package groupsnapshot.
//
// The objects, annotations, finalizers and reasons are those of upstream's snapshot-controller and csi-snapshotter, so
// either program can continue where the other has stopped.
package snapshot
