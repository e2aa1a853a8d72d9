package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

func copyChecks() []check {
	return []check{
		{
			"snapshot", (*exam).snaps, (*exam).checkSnapshot,
			"make one snapshot of a name, of the volume as it is at one moment",
		},
		{
			"restore", func(x *exam) bool { return x.snaps() && x.mounts() }, (*exam).checkRestore,
			"fill a volume from a snapshot with what the volume had at that moment",
		},
		{
			"clone", func(x *exam) bool { return x.clones() && x.mounts() }, (*exam).checkClone,
			"fill the volume with what its source has, and share nothing that is written later",
		},
	}
}

func fromVolume(id string) *csipb.VolumeContentSource {
	return &csipb.VolumeContentSource{
		Type: &csipb.VolumeContentSource_Volume{Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: id}},
	}
}

func fromSnapshot(id string) *csipb.VolumeContentSource {
	return &csipb.VolumeContentSource{
		Type: &csipb.VolumeContentSource_Snapshot{Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: id}},
	}
}

// errNotReady says that a snapshot is still being made.
var errNotReady = errors.New("ready_to_use is still false")

// snapshot makes a snapshot, and waits until it can be used.
func (v *vol) snapshot(ctx context.Context, name string) (*csipb.Snapshot, error) {
	return v.snapshotWhere(ctx, name, nil)
}

// snapshotWhere makes a snapshot that must be usable somewhere, unless the requirement is nil.
func (v *vol) snapshotWhere(
	ctx context.Context, name string, where *csipb.TopologyRequirement,
) (s *csipb.Snapshot, err error) {
	limited, cancel := context.WithTimeout(ctx, v.x.Limit)
	defer cancel()
	err = repeat(limited, func() (bool, error) {
		r, err := do(ctx, v.x, v.x.control().CreateSnapshot, &csipb.CreateSnapshotRequest{
			Name: name, SourceVolumeId: v.id(), Secrets: v.x.Secrets, AccessibilityRequirements: where,
		})
		if err != nil {
			return busy(err) && v.x.stopped() == nil, err
		}
		s = r.GetSnapshot()
		if id := s.GetSnapshotId(); !slices.Contains(v.x.snapshots, id) {
			v.x.snapshots = append(v.x.snapshots, id)
		}
		if !s.GetReadyToUse() {
			return true, errNotReady
		}
		return false, nil
	})
	return s, err
}

func (x *exam) removeSnapshot(ctx context.Context, id string) error {
	return x.insist(ctx, func(ctx context.Context) error {
		_, err := do(ctx, x, x.control().DeleteSnapshot, &csipb.DeleteSnapshotRequest{SnapshotId: id, Secrets: x.Secrets})
		return err
	})
}

// checkSnapshot makes a snapshot twice, one of the same name of another volume, and deletes it twice.
func (x *exam) checkSnapshot(ctx context.Context) verdict {
	v, other := x.volume(), x.volume()
	for _, one := range []*vol{v, other} {
		if err := one.to(ctx, created); err != nil {
			return unable(err)
		}
	}
	name := x.newName()
	first, err := v.snapshot(ctx, name)
	if err != nil {
		return wrong("%v", failure{"CreateSnapshot", err})
	}
	second, err := v.snapshot(ctx, name)
	switch {
	case err != nil:
		return wrong("the same request fails the second time: %s", csi.Describe(err))
	case first.GetSnapshotId() != second.GetSnapshotId():
		return wrong("the same request makes two snapshots")
	}
	if text := x.snapshotProblem(v, first); text != "" {
		return wrong("%s", text)
	}
	_, err = other.snapshot(ctx, name)
	if problem := answered("CreateSnapshot of the same name of another volume", err, codes.AlreadyExists); problem != "" {
		return wrong("%s", problem)
	}
	for range 2 {
		if err := x.removeSnapshot(ctx, first.GetSnapshotId()); err != nil {
			return wrong("%v", failure{"DeleteSnapshot", err})
		}
	}
	for _, one := range []*vol{v, other} {
		if err := one.to(ctx, none); err != nil {
			return unable(err)
		}
	}
	return well("the same request gives the same snapshot")
}

// snapshotProblem returns what is wrong with a snapshot of a volume, or "".
func (x *exam) snapshotProblem(v *vol, s *csipb.Snapshot) string {
	switch {
	case s.GetSourceVolumeId() != v.id():
		return fmt.Sprintf("source_volume_id is %.128q, the snapshot is of %.128q", s.GetSourceVolumeId(), v.id())
	case len(s.GetAccessibleTopology()) > 0 && !x.controller.d.Plugin.SnapshotAccessibilityConstraints:
		return "there is an accessible_topology, and SNAPSHOT_ACCESSIBILITY_CONSTRAINTS is not promised"
	}
	return ""
}

// checkRestore overwrites a volume after a snapshot of it was made.
func (x *exam) checkRestore(ctx context.Context) verdict {
	v, id, err := x.copied(ctx, func(v *vol) (string, error) {
		s, err := v.snapshot(ctx, x.newName())
		return s.GetSnapshotId(), err
	})
	if err != nil {
		return unable(err)
	}
	problem := x.copyProblem(ctx, v, fromSnapshot(id))
	if err := x.removeSnapshot(ctx, id); err != nil {
		return unable(failure{"DeleteSnapshot", err})
	}
	return x.copyVerdict(ctx, v, problem)
}

func (x *exam) checkClone(ctx context.Context) verdict {
	v, id, err := x.copied(ctx, func(v *vol) (string, error) { return v.id(), nil })
	if err != nil {
		return unable(err)
	}
	return x.copyVerdict(ctx, v, x.copyProblem(ctx, v, fromVolume(id)))
}

func (x *exam) copyVerdict(ctx context.Context, v *vol, problem string) verdict {
	if problem != "" {
		return wrong("%s", problem)
	}
	if err := v.to(ctx, none); err != nil {
		return unable(err)
	}
	return well("the new volume has what its source had, and is one of its own")
}

// copied returns a volume with data, which is not in use, and the id of what take makes of it.
func (x *exam) copied(ctx context.Context, take func(*vol) (string, error)) (*vol, string, error) {
	v := x.volume()
	if err := v.to(ctx, published); err != nil {
		return v, "", err
	}
	if err := errors.Join(v.write(v.targets[0], "source"), v.to(ctx, created)); err != nil {
		return v, "", err
	}
	id, err := take(v)
	if err != nil {
		return v, "", failure{"CreateSnapshot", err}
	}
	return v, id, nil
}

// copyProblem makes a volume from a source, and writes to both.
func (x *exam) copyProblem(ctx context.Context, v *vol, source *csipb.VolumeContentSource) string {
	if source.GetSnapshot() != nil {
		// What is written after the snapshot is not in it.
		if err := x.overwrite(ctx, v); err != nil {
			return err.Error()
		}
	}
	c := x.copyOf(source)
	c.size = max(v.size, v.made.GetCapacityBytes())
	if err := c.to(ctx, created); err != nil {
		return err.Error()
	}
	if problem := volumeProblem(c.createRequest(), c.made); problem != "" {
		return problem
	}
	if err := c.to(ctx, published); err != nil {
		return fmt.Sprintf("the new volume cannot be used: %v", err)
	}
	if err := c.holds(c.targets[0], "source"); err != nil {
		return fmt.Sprintf("the new volume does not have what its source had: %v", err)
	}
	if err := errors.Join(c.write(c.targets[0], "mine"), c.to(ctx, none)); err != nil {
		return fmt.Sprintf("the new volume cannot be used: %v", err)
	}
	return x.unchanged(ctx, v, source)
}

func (x *exam) overwrite(ctx context.Context, v *vol) error {
	if err := v.to(ctx, published); err != nil {
		return err
	}
	return errors.Join(v.write(v.targets[0], "later"), v.to(ctx, created))
}

// unchanged says whether the source has what it had before something was written to the copy.
func (x *exam) unchanged(ctx context.Context, v *vol, source *csipb.VolumeContentSource) string {
	word := "source"
	if source.GetSnapshot() != nil {
		word = "later"
	}
	if err := v.to(ctx, published); err != nil {
		return fmt.Sprintf("the source cannot be used: %v", err)
	}
	if err := v.holds(v.targets[0], word); err != nil {
		return fmt.Sprintf("what is written to the new volume changes its source: %v", err)
	}
	return errorText(v.to(ctx, created))
}
