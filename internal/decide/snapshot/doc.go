// Package snapshot decides how snapshots of volumes are taken, bound and deleted: Snapshot about a VolumeSnapshot, and
// Claim about the source claim of snapshots. A Kind has the decisions that snapshots and groups of them share: Content
// about a content, and Driver and the functions After... about the calls of its driver. Single is the Kind of
// snapshots; that of groups is in package groupsnapshot.
//
// The objects, annotations, finalizers and reasons are those of upstream's snapshot-controller and csi-snapshotter, so
// either program can continue where the other has stopped.
package snapshot
