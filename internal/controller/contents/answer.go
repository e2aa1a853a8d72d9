package contents

import (
	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/decide/topology"
)

// Taken returns a snapshot that a driver has described as the fact that decisions judge.
func Taken(s *csipb.Snapshot) snapshot.Taken {
	return snapshot.Taken{
		Handle: s.GetSnapshotId(), Source: s.GetSourceVolumeId(), Bytes: s.GetSizeBytes(), Ready: s.GetReadyToUse(),
		Created: Nanoseconds(s.GetCreationTime()), Group: s.GetGroupSnapshotId(),
		Places: csi.Segments[topology.Segment](s.GetAccessibleTopology()),
	}
}

// Nanoseconds returns a time in nanoseconds since 1970; 0 if there is none.
func Nanoseconds(t *timestamppb.Timestamp) int64 {
	if t == nil {
		return 0
	}
	return t.AsTime().UnixNano()
}
