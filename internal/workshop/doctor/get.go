package doctor

import (
	"context"
	"maps"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/csi"
)

func getChecks() []check {
	return []check{
		{
			"get-volume", func(x *exam) bool { return x.creates() && x.promises().GetVolume },
			shared((*exam).checkGetVolume, created),
			"answer ControllerGetVolume with the volume as CreateVolume answered, and with its status",
		},
		{
			"get-snapshot", func(x *exam) bool { return x.canSnapshot() && x.promises().GetSnapshot },
			own((*exam).checkGetSnapshot, created),
			"answer GetSnapshot with the snapshot as CreateSnapshot answered, and with NOT_FOUND when it is deleted",
		},
		{
			"snapshot-topology", (*exam).placesSnapshots, own((*exam).checkSnapshotTopology, created),
			"make the snapshot where it is required, or answer RESOURCE_EXHAUSTED",
		},
	}
}

func (x *exam) checkGetVolume(ctx context.Context, v *vol) verdict {
	r, err := do(ctx, x, x.control().ControllerGetVolume, &csipb.ControllerGetVolumeRequest{VolumeId: v.id()})
	got := r.GetVolume()
	switch {
	case err != nil:
		return fail("ControllerGetVolume: %s", csi.Describe(err))
	case got.GetVolumeId() != v.id():
		return fail("the volume_id of the answer is %.128q, that of the request was %.128q", got.GetVolumeId(), v.id())
	case got.GetCapacityBytes() < v.made.GetCapacityBytes():
		return fail("the volume has %d bytes, and it was created with %d", got.GetCapacityBytes(), v.made.GetCapacityBytes())
	case r.GetStatus() == nil:
		return fail("the answer has no status")
	case !maps.Equal(got.GetVolumeContext(), v.made.GetVolumeContext()):
		return warn("the volume_context is not that of CreateVolume")
	}
	return pass("the volume is as it was created")
}

// get returns a snapshot as the driver says that it is.
func (x *exam) get(ctx context.Context, id string) (*csipb.Snapshot, error) {
	r, err := do(ctx, x, x.control().GetSnapshot, &csipb.GetSnapshotRequest{SnapshotId: id, Secrets: x.Secrets})
	return r.GetSnapshot(), err
}

func (x *exam) checkGetSnapshot(ctx context.Context, v *vol) verdict {
	made, err := v.snapshot(ctx, x.newName())
	if err != nil {
		return skipped(failure{"CreateSnapshot", err})
	}
	got, failed := x.get(ctx, made.GetSnapshotId())
	if err := x.removeSnapshot(ctx, made.GetSnapshotId()); err != nil {
		return skipped(err)
	}
	_, gone := x.get(ctx, made.GetSnapshotId())
	switch {
	case failed != nil:
		return fail("GetSnapshot: %s", csi.Describe(failed))
	case !proto.Equal(got, made):
		return fail("the snapshot is not what CreateSnapshot answered, but %.300s", got)
	}
	return unless(answered("GetSnapshot of a deleted snapshot", gone, codes.NotFound),
		"the snapshot is as it was created, and gone when it is deleted")
}

// placesSnapshots says that snapshots of the driver have a place.
func (x *exam) placesSnapshots() bool {
	return x.canSnapshot() && x.controller.d.Plugin.SnapshotAccessibilityConstraints && x.here() != nil
}

// checkSnapshotTopology asks for a snapshot that can be used on this node, and for one of a place that does not exist.
func (x *exam) checkSnapshotTopology(ctx context.Context, v *vol) verdict {
	here, failed := x.snapshotAt(ctx, v, x.here())
	nowhere, refused := x.snapshotAt(ctx, v, x.nowhere())
	switch {
	case failed != nil:
		return fail("a snapshot that can be used on this node: %v", failed)
	case here != "":
		return fail("a snapshot must be usable on this node: %s", here)
	case refused == nil && nowhere != "":
		return fail("where the source does not exist, a snapshot is created: %s", nowhere)
	case refused == nil:
		return pass("snapshots are where they are required")
	}
	return unless(answered("CreateSnapshot where there is nothing", refused, codes.ResourceExhausted,
		codes.InvalidArgument), "a snapshot is where it is required, and is refused where there is nothing")
}

// snapshotAt makes a snapshot with a requirement, and says what is wrong with its place.
func (x *exam) snapshotAt(ctx context.Context, v *vol, r *csipb.TopologyRequirement) (problem string, err error) {
	s, err := v.snapshotWhere(ctx, x.newName(), r)
	if err != nil {
		return "", failure{"CreateSnapshot", err}
	}
	return accessProblem(r, s.GetAccessibleTopology()), nil
}
