// Package snapshotmetadata serves the changed blocks of snapshots to backup programs of a cluster, in the place of
// csi-snapshot-metadata: the service SnapshotMetadata of KEP-3314, over TLS.
//
// A request names a VolumeSnapshot and carries a token. The API server says whose token it is (TokenReview, with the
// audience) and whether that user may read the snapshot (SubjectAccessReview); then the driver is called with the
// handle of the snapshot, and its answers are passed on, one at a time.
//
// Neither clients nor drivers are trusted: requests, reviews, streams and answers have limits, names must be valid
// object names, and a stream of the driver goes forwards, without overlaps, within the volume (csi.BlockOrder). No more
// than one answer of a stream is kept, and a driver is read no faster than the client reads.
//
// Life cycle: Serve answers until its context ends, and gives the streams in flight some time to end. Nothing is kept
// between two requests; a client whose stream was interrupted resumes with starting_offset.
package snapshotmetadata
