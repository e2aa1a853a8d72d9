package doctor

import (
	"context"
	"errors"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/mount"
)

func useChecks() []check {
	usage := func(x *exam) bool { return x.mounts() && x.node.d.Node.Stats }
	return []check{
		{
			"data", (*exam).mounts, shared((*exam).checkData, published),
			"delete and format nothing when a volume is unpublished, unstaged, detached or used again",
		},
		{
			"two-targets", (*exam).mounts, shared((*exam).checkTwoTargets, published),
			"publish by bind mounts of what is staged, and unmount the one target_path that is given",
		},
		{
			"single-writer",
			func(x *exam) bool { return x.mounts() && x.node.d.Node.SingleNodeMultiWriter },
			own((*exam).checkSingleWriter, none),
			"answer FAILED_PRECONDITION to a second target_path of a volume with SINGLE_NODE_SINGLE_WRITER",
		},
		{
			"read-only", (*exam).mounts, shared((*exam).checkReadOnly, published),
			"mount the target_path with the option ro if readonly is true",
		},
		{
			"block", (*exam).mounts, own((*exam).checkBlock, none),
			"bind the device to a file at the target_path, or refuse block volumes with INVALID_ARGUMENT",
		},
		{
			"stats", usage, own((*exam).checkStats, published),
			"answer with what statfs says of the volume_path, in bytes",
		},
		{
			"stats-path", usage, shared((*exam).checkStatsPath, published),
			"answer NOT_FOUND when the volume is not at the volume_path",
		},
	}
}

// checkData writes to the volume, takes it away from the node and brings it back.
func (x *exam) checkData(ctx context.Context, v *vol) verdict {
	if err := v.write(v.targets[0], "kept"); err != nil {
		return skipped(err)
	}
	for _, far := range []state{staged, created} {
		if err := v.to(ctx, far); err != nil {
			return skipped(err)
		}
		if err := v.to(ctx, published); err != nil {
			return fail("what was used before cannot be used again: %v", err)
		}
		if err := v.holds(v.targets[0], "kept"); err != nil {
			return fail("the data is lost after %s: %v", downwards()[far+1].name, err)
		}
	}
	return pass("what was written is there after the volume was unpublished, unstaged and detached")
}

func (x *exam) checkTwoTargets(ctx context.Context, v *vol) verdict {
	one, two := v.targets[0], v.target(2)
	if err := x.retryWhileBusy(ctx, func(ctx context.Context) error { return v.publishAt(ctx, two) }); err != nil {
		v.targets = v.targets[:1]
		return fail("a second target_path on the same node is refused: %s", csi.Describe(err))
	}
	if err := v.write(one, "two"); err != nil {
		return skipped(err)
	}
	if err := v.holds(two, "two"); err != nil {
		return fail("at a second target_path the volume is another one: %v", err)
	}
	if err := x.retryWhileBusy(ctx, func(ctx context.Context) error { return v.unpublishAt(ctx, two) }); err != nil {
		return skipped(failure{"NodeUnpublishVolume", err})
	}
	v.targets = v.targets[:1]
	switch {
	case mounts(two) > 0:
		return fail("what is unpublished from one target_path is still mounted there")
	case mounts(one) != 1:
		v.lower(staged)
		return fail("what is unpublished from one target_path is gone from the other one")
	}
	if err := v.holds(one, "two"); err != nil {
		return fail("a volume unpublished from one target_path no longer works at the other one: %v", err)
	}
	return pass("each target_path has a mount of its own")
}

func (x *exam) checkSingleWriter(ctx context.Context, v *vol) verdict {
	v.capability = csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, false, x.FSType, nil)
	if err := v.to(ctx, published); err != nil {
		return skipped(err)
	}
	err := v.publishAt(ctx, v.target(2))
	n := mounts(v.target(2))
	if err != nil && n == 0 {
		v.targets = v.targets[:1]
	}
	if problem := answered("NodePublishVolume at a second target_path", err, codes.FailedPrecondition); problem != "" {
		return fail("%s", problem)
	}
	if n > 0 {
		return fail("a second target_path is refused, and mounted")
	}
	return pass("a second writer is refused")
}

func (x *exam) checkReadOnly(ctx context.Context, v *vol) verdict {
	if err := errors.Join(v.write(v.targets[0], "read"), v.to(ctx, staged)); err != nil {
		return skipped(err)
	}
	v.readOnly = true
	defer func() { v.readOnly = false }()
	if err := v.to(ctx, published); err != nil {
		return fail("it cannot be published with readonly: %v", err)
	}
	read, written := v.holds(v.targets[0], "read"), v.write(v.targets[0], "read")
	if err := v.to(ctx, staged); err != nil {
		return skipped(err)
	}
	switch {
	case read != nil:
		return fail("published with readonly, it cannot be read: %v", read)
	case written == nil:
		return fail("it is published with readonly, and can be written to")
	}
	return pass("what is published with readonly can be read, and not written to")
}

// checkBlock uses a volume without a filesystem.
func (x *exam) checkBlock(ctx context.Context, v *vol) verdict {
	v.capability = csi.Capability(v.capability.GetAccessMode().GetMode(), true, "", nil)
	err := v.to(ctx, created)
	if csi.Code(err) == codes.InvalidArgument {
		return pass("block volumes are refused: %s", csi.Describe(err))
	}
	if err != nil {
		return skipped(err)
	}
	problem := x.blockProblem(ctx, v)
	if err := v.to(ctx, none); err != nil && problem == "" {
		return fail("a block volume cannot be removed: %v", err)
	}
	return unless(problem, "there is a device at the target_path, and what was written to it stays")
}

func (x *exam) blockProblem(ctx context.Context, v *vol) string {
	if err := v.to(ctx, published); err != nil {
		return fmt.Sprintf("a created block volume cannot be published: %v", err)
	}
	target := v.targets[0]
	if !mount.IsDevice(target) {
		return "there is no block device at the target_path"
	}
	if err := errors.Join(x.retryWhileBusy(ctx, v.stage), x.retryWhileBusy(ctx, v.publish)); err != nil {
		return fmt.Sprintf("what is published cannot be published again: %s", csi.Describe(err))
	}
	if n := mounts(target); n > 1 {
		return fmt.Sprintf("published twice, there are %d mounts at the target_path", n)
	}
	if size, err := mount.DeviceSize(target); err != nil || size < v.size {
		return fmt.Sprintf("the device has %d bytes, %d were required", size, v.size)
	}
	if err := v.write(target, "block"); err != nil {
		return fmt.Sprintf("the device cannot be written to: %v", err)
	}
	if err := v.to(ctx, created); err != nil {
		return err.Error()
	}
	if x.exists(target) {
		return "the target_path is still there after NodeUnpublishVolume"
	}
	if err := v.to(ctx, published); err != nil {
		return fmt.Sprintf("a block volume cannot be used again: %v", err)
	}
	if err := v.holds(target, "block"); err != nil {
		return fmt.Sprintf("what was written to the device is lost: %v", err)
	}
	return ""
}

// checkStats compares what the driver says with what was written.
func (x *exam) checkStats(ctx context.Context, v *vol) verdict {
	empty, err := v.usage(ctx)
	if err != nil {
		return fail("%v", err)
	}
	if err := errors.Join(v.write(v.targets[0], "a"), v.to(ctx, published)); err != nil {
		return skipped(err)
	}
	full, err := v.usage(ctx)
	if err != nil {
		return fail("%v", err)
	}
	return statsVerdict(empty, full)
}

// usage returns how many bytes are used, as the driver says.
func (v *vol) usage(ctx context.Context) (*csipb.VolumeUsage, error) {
	r, err := do(ctx, v.x, v.x.serve().NodeGetVolumeStats, &csipb.NodeGetVolumeStatsRequest{
		VolumeId: v.id(), VolumePath: v.targets[0], StagingTargetPath: v.staging(),
	})
	if err != nil {
		return nil, failure{"NodeGetVolumeStats", err}
	}
	for _, u := range r.GetUsage() {
		if u.GetUnit() == csipb.VolumeUsage_BYTES {
			return u, nil
		}
	}
	return nil, errors.New("NodeGetVolumeStats answers without usage in BYTES")
}

// statsVerdict judges the usage before and after dataSize bytes were written.
func statsVerdict(empty, full *csipb.VolumeUsage) verdict {
	total, used, available := full.GetTotal(), full.GetUsed(), full.GetAvailable()
	grown := used - empty.GetUsed()
	switch {
	case total <= 0:
		return fail("total is %d bytes", total)
	case used > total || available > total || used+available > total+total/100:
		return fail("%d bytes are used and %d available, of %d in total", used, available, total)
	case used+available < total/2:
		return warn("%d bytes are used and %d available, of %d in total: where is the rest?", used, available, total)
	case grown < dataSize/2 || grown > 8*dataSize:
		return warn("%d bytes were written, and %d more are used: is the unit BYTES?", dataSize, grown)
	}
	return pass("%d bytes are used and %d available, of %d in total", used, available, total)
}

func (x *exam) checkStatsPath(ctx context.Context, v *vol) verdict {
	_, err := do(ctx, x, x.serve().NodeGetVolumeStats, &csipb.NodeGetVolumeStatsRequest{
		VolumeId: v.id(), VolumePath: x.path("nowhere"),
	})
	return unless(answered("NodeGetVolumeStats of a path where the volume is not", err, codes.NotFound),
		"where the volume is not, it is NOT_FOUND")
}
