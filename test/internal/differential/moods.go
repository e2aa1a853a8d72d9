package differential

import (
	"fmt"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"volplane.dev/volplane/internal/csi/csitest"
)

// Mood is what the driver reports about the snapshots of a sequence.
type Mood struct {
	// Unready says that they are not ready to use, untimed that the driver does not report when they were created.
	Unready, Untimed bool
	// Size is in GiB; a negative one is not reported.
	Size int64
}

func (m Mood) String() string {
	return fmt.Sprintf("ready %v, with a time %v, %d GiB", !m.Unready, !m.Untimed, m.Size+1)
}

// of returns the snapshot as the driver reports it.
func (m Mood) of(id, source string) *csipb.Snapshot {
	out := &csipb.Snapshot{SnapshotId: id, SourceVolumeId: source, ReadyToUse: !m.Unready, SizeBytes: (m.Size + 1) << 30}
	if !m.Untimed {
		out.CreationTime = &timestamppb.Timestamp{Seconds: 1}
	}
	return out
}

// ReportSnapshots makes the driver answer as the sequences want.
func (s *Storage) ReportSnapshots() {
	s.Driver.OnCall("CreateSnapshot", func(_ int, req any) csitest.Action {
		r := req.(*csipb.CreateSnapshotRequest)
		id, space := "id-"+r.GetName(), newMemory().space.FindString(r.GetSourceVolumeId())
		s.mu.Lock()
		s.spaces[id] = space
		m := s.moods[space]
		s.mu.Unlock()
		action, _ := s.action(space, "CreateSnapshot", r.GetName())
		if action.Err == nil && !action.Hang {
			action.After = true
			action.Answer = &csipb.CreateSnapshotResponse{Snapshot: m.of(id, r.GetSourceVolumeId())}
		}
		return action
	})
	s.Driver.OnCall("DeleteSnapshot", func(_ int, req any) csitest.Action {
		id := req.(*csipb.DeleteSnapshotRequest).GetSnapshotId()
		action, _ := s.action(s.spaceOfSnapshot(id), "DeleteSnapshot", id)
		return action
	})
	s.Driver.OnCall("ListSnapshots", func(_ int, req any) csitest.Action {
		id := req.(*csipb.ListSnapshotsRequest).GetSnapshotId()
		space := s.spaceOfSnapshot(id)
		action, _ := s.action(space, "ListSnapshots", id)
		if action.Err == nil && !action.Hang && slices.Contains(s.Driver.Snapshots(), id) {
			s.mu.Lock()
			defer s.mu.Unlock()
			action.After = true
			action.Answer = &csipb.ListSnapshotsResponse{
				Entries: []*csipb.ListSnapshotsResponse_Entry{{Snapshot: s.moods[space].of(id, "")}},
			}
		}
		return action
	})
}

// spaceOfSnapshot returns the sequence of a snapshot of the driver.
func (s *Storage) spaceOfSnapshot(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if space := s.spaces[id]; space != "" {
		return space
	}
	return newMemory().space.FindString(id)
}

// SetMood makes the driver report the snapshots of a sequence according to a mood from now on.
func (s *Storage) SetMood(space string, m Mood) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moods[space] = m
}

// Shot is the driver's id of all snapshots.
const Shot = "shot"
