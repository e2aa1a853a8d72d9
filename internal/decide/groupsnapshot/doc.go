// Package groupsnapshot decides how groups of snapshots, of several volumes at one moment, are taken and deleted at
// their driver: Driver, with the functions After..., decides about a VolumeGroupSnapshotContent.
//
// The objects, annotations, finalizers and reasons are those of upstream's csi-snapshotter, so that either of the two
// can go on where the other one has stopped. What becomes of a VolumeGroupSnapshot, and the snapshots of a group in the
// API, are the affair of a snapshot-controller.
package groupsnapshot
