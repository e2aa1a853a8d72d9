// Package snapshot decides how snapshots of volumes are taken, bound and deleted: Snapshot about a VolumeSnapshot,
// Claim about a claim that snapshots are taken of, Content about a VolumeSnapshotContent, and Driver, with the
// functions After..., about the calls of a driver.
//
// The objects, annotations, finalizers and reasons are those of upstream's snapshot-controller and csi-snapshotter, so
// that either of them can go on where this program has stopped, and the other way round.
package snapshot
