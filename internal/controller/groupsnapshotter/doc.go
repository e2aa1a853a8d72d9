// Package groupsnapshotter has drivers take and delete groups of snapshots, as VolumeGroupSnapshotContents say. It is
// the part of upstream's csi-snapshotter that is about groups, and holds the same lease. It decides nothing:
// internal/decide/groupsnapshot does.
package groupsnapshotter
