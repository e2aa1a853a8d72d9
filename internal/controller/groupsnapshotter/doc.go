// Package groupsnapshotter calls drivers to create and delete groups of snapshots, as VolumeGroupSnapshotContents
// require. It is the part of upstream's csi-snapshotter for groups, and holds the same lease. It decides nothing:
// internal/decide/groupsnapshot does.
package groupsnapshotter
