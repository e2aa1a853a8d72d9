// Package snapshotter has the two controllers that take and delete snapshots. One of them, snapshot-controller, binds
// VolumeSnapshots to VolumeSnapshotContents; a cluster has one. The other, snapshotter, calls the drivers that this
// process reaches, for the contents of their snapshots. They meet only in contents, so either can be replaced by
// upstream's program for the same task.
package snapshotter
