// Package groupsnapshot decides how groups of snapshots, of several volumes at one moment, are taken and deleted. Group
// decides about a VolumeGroupSnapshot: its content, and the snapshots that are its members in the API. Membership
// decides how long a member stays. What is decided as for single snapshots, about contents and about what their drivers
// are asked for, is in package snapshot; Groups has what differs.
//
// The objects, annotations, finalizers, names and reasons are those of upstream's snapshot-controller and
// csi-snapshotter, so that either of them can go on where this program has stopped, and the other way round.
package groupsnapshot
