// Package groupsnapshot decides how groups of snapshots, of several volumes at one moment, are taken and deleted. Group
// decides about a VolumeGroupSnapshot: its content, and the snapshots that are its members in the API. Content and
// Membership decide what a content and a member get that depends on their group. Driver, with the functions that judge
// answers of drivers, decides about the driver's part of a VolumeGroupSnapshotContent.
//
// The objects, annotations, finalizers, names and reasons are those of upstream's snapshot-controller and
// csi-snapshotter, so that either of them can go on where this program has stopped, and the other way round.
package groupsnapshot
