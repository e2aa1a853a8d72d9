// Package groupsnapshot decides how groups of snapshots, of several volumes at one moment, are taken and deleted. Group
// decides about a VolumeGroupSnapshot: its content, and the snapshots that are its members in the API. Membership
// decides how long a member stays. Decisions that are the same for single snapshots, about contents and the calls to
// their drivers, are in package snapshot; Groups has what differs.
//
// The objects, annotations, finalizers, names and reasons are those of upstream's snapshot-controller and
// csi-snapshotter, so either program can continue where the other has stopped.
package groupsnapshot
