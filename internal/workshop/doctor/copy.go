package doctor

import (
	"context"
	"errors"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

func copyChecks() []check {
	return []check{
		{
			"snapshot", (*exam).canSnapshot, own((*exam).checkSnapshot, created),
			"make one snapshot of a name, of the volume as it is at one moment",
		},
		{
			"restore", func(x *exam) bool { return x.canSnapshot() && x.mounts() }, own((*exam).checkRestore, none),
			"fill a volume from a snapshot with what the volume had at that moment",
		},
		{
			"clone", func(x *exam) bool { return x.canClone() && x.mounts() }, own((*exam).checkClone, none),
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
	err = v.x.ready(ctx, v.x.removeSnapshot, func() (string, bool, error) {
		r, err := do(ctx, v.x, v.x.control().CreateSnapshot, &csipb.CreateSnapshotRequest{
			Name: name, SourceVolumeId: v.id(), Secrets: v.x.Secrets, AccessibilityRequirements: where,
		})
		s = r.GetSnapshot()
		return s.GetSnapshotId(), s.GetReadyToUse(), err
	})
	return s, err
}

// ready takes a snapshot or a group of them, and waits until it can be used. What is taken is removed after the check.
func (x *exam) ready(
	ctx context.Context, remove func(context.Context, string) error, take func() (id string, ready bool, err error),
) error {
	limited, cancel := context.WithTimeout(ctx, x.Limit)
	defer cancel()
	made := ""
	return repeat(limited, func() (bool, error) {
		id, ready, err := take()
		if err != nil {
			return busy(err) && x.stopped() == nil, err
		}
		if id != made {
			made = id
			x.made = append(x.made, func(ctx context.Context, _ bool) error { return remove(ctx, id) })
		}
		if !ready {
			return true, errNotReady
		}
		return false, nil
	})
}

func (x *exam) removeSnapshot(ctx context.Context, id string) error {
	err := x.retryWhileBusy(ctx, probe(x, x.control().DeleteSnapshot,
		&csipb.DeleteSnapshotRequest{SnapshotId: id, Secrets: x.Secrets}))
	if err != nil {
		return failure{"DeleteSnapshot", err}
	}
	return nil
}

// checkSnapshot makes a snapshot twice, one of the same name of another volume, and deletes it twice.
func (x *exam) checkSnapshot(ctx context.Context, v *vol) verdict {
	other := x.volume()
	if err := other.to(ctx, created); err != nil {
		return skipped(err)
	}
	name := x.newName()
	first, err := v.snapshot(ctx, name)
	if err != nil {
		return fail("%v", failure{"CreateSnapshot", err})
	}
	second, err := v.snapshot(ctx, name)
	switch {
	case err != nil:
		return fail("the same request fails the second time: %s", csi.Describe(err))
	case first.GetSnapshotId() != second.GetSnapshotId():
		return fail("the same request makes two snapshots")
	}
	if text := x.snapshotProblem(v, first); text != "" {
		return fail("%s", text)
	}
	_, err = other.snapshot(ctx, name)
	if problem := answered("CreateSnapshot of the same name of another volume", err, codes.AlreadyExists); problem != "" {
		return fail("%s", problem)
	}
	for range 2 {
		if err := x.removeSnapshot(ctx, first.GetSnapshotId()); err != nil {
			return fail("%v", err)
		}
	}
	return pass("the same request gives the same snapshot")
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
func (x *exam) checkRestore(ctx context.Context, v *vol) verdict {
	if err := v.fill(ctx, "source"); err != nil {
		return skipped(err)
	}
	s, err := v.snapshot(ctx, x.newName())
	if err != nil {
		return skipped(failure{"CreateSnapshot", err})
	}
	// What is written after the snapshot is not in it.
	if err := v.fill(ctx, "later"); err != nil {
		return fail("%v", err)
	}
	return x.copyVerdict(ctx, v, fromSnapshot(s.GetSnapshotId()), "later")
}

func (x *exam) checkClone(ctx context.Context, v *vol) verdict {
	if err := v.fill(ctx, "source"); err != nil {
		return skipped(err)
	}
	return x.copyVerdict(ctx, v, fromVolume(v.id()), "source")
}

// fill writes to a volume, which is not in use before and after that.
func (v *vol) fill(ctx context.Context, word string) error {
	if err := v.to(ctx, published); err != nil {
		return err
	}
	return errors.Join(v.write(v.targets[0], word), v.to(ctx, created))
}

// copyVerdict makes a volume from a source, which had "source" at that moment and now has a word, and writes to the new
// one.
func (x *exam) copyVerdict(ctx context.Context, v *vol, source *csipb.VolumeContentSource, word string) verdict {
	c := x.copyOf(source)
	c.size = max(v.size, v.made.GetCapacityBytes())
	if err := c.to(ctx, created); err != nil {
		return fail("%v", err)
	}
	if problem := volumeProblem(c.createRequest(), c.made); problem != "" {
		return fail("%s", problem)
	}
	if err := c.to(ctx, published); err != nil {
		return fail("the new volume cannot be used: %v", err)
	}
	if err := c.holds(c.targets[0], "source"); err != nil {
		return fail("the new volume does not have what its source had: %v", err)
	}
	if err := errors.Join(c.write(c.targets[0], "mine"), c.to(ctx, none)); err != nil {
		return fail("the new volume cannot be used: %v", err)
	}
	if err := v.to(ctx, published); err != nil {
		return fail("the source cannot be used: %v", err)
	}
	if err := v.holds(v.targets[0], word); err != nil {
		return fail("what is written to the new volume changes its source: %v", err)
	}
	return unless(errorText(v.to(ctx, created)), "the new volume has what its source had, and is one of its own")
}
