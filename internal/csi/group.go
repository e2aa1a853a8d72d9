package csi

import (
	"fmt"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// groupProblem returns what is wrong with an answer about a group of snapshots, or "". A group that lacks a volume is
// not a copy of one moment, and a snapshot that the driver adds would be deleted with the group.
func groupProblem(req, reply any) string {
	switch r := req.(type) {
	case *csipb.CreateVolumeGroupSnapshotRequest:
		g := reply.(*csipb.CreateVolumeGroupSnapshotResponse).GetGroupSnapshot()
		if problem := membersProblem(g); problem != "" {
			return problem
		}
		return setProblem("snapshots of volumes", sourcesOf(g), r.GetSourceVolumeIds())
	case *csipb.GetVolumeGroupSnapshotRequest:
		g := reply.(*csipb.GetVolumeGroupSnapshotResponse).GetGroupSnapshot()
		if g.GetGroupSnapshotId() != r.GetGroupSnapshotId() {
			return fmt.Sprintf("group %.128q, and not %.128q", g.GetGroupSnapshotId(), r.GetGroupSnapshotId())
		}
		if problem := membersProblem(g); problem != "" || len(r.GetSnapshotIds()) == 0 {
			return problem
		}
		return setProblem("snapshots", idsOf(g), r.GetSnapshotIds())
	}
	return ""
}

// membersProblem returns what is wrong with a group, independently of the request.
func membersProblem(g *csipb.VolumeGroupSnapshot) string {
	if g.GetGroupSnapshotId() == "" {
		return "no group snapshot id"
	}
	for _, s := range g.GetSnapshots() {
		switch {
		case s.GetSnapshotId() == "":
			return "a group with a snapshot without id"
		case s.GetSourceVolumeId() == "":
			return fmt.Sprintf("snapshot %.128q of no volume", s.GetSnapshotId())
		case s.GetGroupSnapshotId() != "" && s.GetGroupSnapshotId() != g.GetGroupSnapshotId():
			return fmt.Sprintf("snapshot %.128q of group %.128q in group %.128q", s.GetSnapshotId(), s.GetGroupSnapshotId(),
				g.GetGroupSnapshotId())
		}
	}
	if id := twice(idsOf(g)); id != "" {
		return fmt.Sprintf("a group with two snapshots %.128q", id)
	}
	if id := twice(sourcesOf(g)); id != "" {
		return fmt.Sprintf("a group with two snapshots of volume %.128q", id)
	}
	return ""
}

func idsOf(g *csipb.VolumeGroupSnapshot) (ids []string) {
	for _, s := range g.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	return ids
}

func sourcesOf(g *csipb.VolumeGroupSnapshot) (ids []string) {
	for _, s := range g.GetSnapshots() {
		ids = append(ids, s.GetSourceVolumeId())
	}
	return ids
}

// twice returns a text that is in a list more than once, or "".
func twice(all []string) string {
	sorted := slices.Sorted(slices.Values(all))
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			return sorted[i]
		}
	}
	return ""
}

// setProblem says which text is in only one of two lists.
func setProblem(what string, got, want []string) string {
	for _, id := range want {
		if !slices.Contains(got, id) {
			return fmt.Sprintf("a group of %d %s without that of %.128q", len(got), what, id)
		}
	}
	for _, id := range got {
		if !slices.Contains(want, id) {
			return fmt.Sprintf("a group of %d %s with that of %.128q, which was not asked for", len(got), what, id)
		}
	}
	return ""
}
