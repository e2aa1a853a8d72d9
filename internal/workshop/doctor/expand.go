package doctor

import (
	"context"
	"errors"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

func growChecks() []check {
	byController := func(x *exam) bool { return x.mounts() && x.promises().Expand }
	return []check{
		{
			"grow-volume", byController, own((*exam).checkGrowVolume, created),
			"expand the volume to at least the required size, once, and report its size",
		},
		{
			"grow-shrink", byController, shared((*exam).checkShrink, published),
			"answer OUT_OF_RANGE when the limit is less than the volume has; never shrink it",
		},
		{
			"grown", (*exam).grows, own((*exam).checkGrown, published),
			"fit the filesystem to the volume in NodeExpandVolume, while it is mounted, and keep the data",
		},
	}
}

func (v *vol) growRequest(size int64) *csipb.ControllerExpandVolumeRequest {
	return &csipb.ControllerExpandVolumeRequest{
		VolumeId: v.id(), CapacityRange: &csipb.CapacityRange{RequiredBytes: size}, VolumeCapability: v.capability,
		Secrets: v.x.Secrets,
	}
}

func (v *vol) growVolume(ctx context.Context, size int64) (*csipb.ControllerExpandVolumeResponse, error) {
	return do(ctx, v.x, v.x.control().ControllerExpandVolume, v.growRequest(size))
}

// checkGrowVolume expands a volume that is not in use, twice to the same size.
func (x *exam) checkGrowVolume(ctx context.Context, v *vol) verdict {
	if !x.plugin.OfflineExpansion {
		// Drivers that expand only what is in use may refuse the rest.
		if err := v.to(ctx, published); err != nil {
			return skipped(err)
		}
	}
	want := 2 * max(v.size, v.made.GetCapacityBytes())
	var sizes []int64
	for range 2 {
		var size int64
		err := x.retryWhileBusy(ctx, func(ctx context.Context) error {
			r, err := v.growVolume(ctx, want)
			size = r.GetCapacityBytes()
			return err
		})
		if err != nil {
			return fail("%v", failure{"ControllerExpandVolume", err})
		}
		sizes = append(sizes, size)
	}
	switch {
	case sizes[0] < want:
		return fail("the volume has %d bytes, %d were required", sizes[0], want)
	case sizes[0] != sizes[1]:
		return fail("the same request gives %d bytes, and then %d", sizes[0], sizes[1])
	}
	return pass("the volume has %d bytes", sizes[0])
}

// checkShrink asks for less than a volume has.
func (x *exam) checkShrink(ctx context.Context, v *vol) verdict {
	has := v.made.GetCapacityBytes()
	if has == 0 {
		return warn("CreateVolume does not say how large a volume is, so it was not checked")
	}
	less := v.growRequest(has / 2)
	less.CapacityRange.LimitBytes = has / 2
	r, err := do(ctx, x, x.control().ControllerExpandVolume, less)
	if err == nil {
		return fail("a volume of %d bytes is to have %d at most: the answer is OK, with %d", has, has/2,
			r.GetCapacityBytes())
	}
	return pass("a volume does not shrink: %s", csi.Code(err))
}

// checkGrown expands a volume while it is mounted, or, where that is not possible, between two uses.
func (x *exam) checkGrown(ctx context.Context, v *vol) verdict {
	if err := v.write(v.targets[0], "before"); err != nil {
		return skipped(err)
	}
	before, err := x.sizeOf(v.targets[0])
	if err != nil {
		return skipped(err)
	}
	online, problem := x.expand(ctx, v)
	if problem == "" {
		problem = v.largerThan(before)
	}
	switch {
	case problem != "":
		return fail("%s", problem)
	case !online:
		return warn("the filesystem is larger after it was remounted; while it is mounted, NodeExpandVolume is " +
			"FAILED_PRECONDITION (ext4 can be expanded only if the driver has CAP_SYS_RESOURCE; try --fstype xfs)")
	}
	return pass("the filesystem is larger, and the data is unchanged")
}

// expand expands a volume that is published, and says whether that was possible while it is.
func (x *exam) expand(ctx context.Context, v *vol) (online bool, problem string) {
	want, onNode := 2*max(v.size, v.made.GetCapacityBytes()), true
	if x.promises().Expand {
		if !x.plugin.OnlineExpansion && x.plugin.OfflineExpansion {
			return x.expandOffline(ctx, v, want)
		}
		r, err := v.growVolume(ctx, want)
		if err != nil {
			return false, failure{"ControllerExpandVolume of what is mounted", err}.Error()
		}
		onNode = r.GetNodeExpansionRequired()
	}
	if !onNode {
		return true, ""
	}
	if !x.node.d.Node.Expand {
		return false, "node_expansion_required is true, and NodeExpandVolume is not promised"
	}
	for range 2 {
		err := v.growOnNode(ctx, want)
		// The kernel lets not every process grow what is mounted, and CSI has this code for it.
		if csi.Code(err) == codes.FailedPrecondition {
			return false, errorText(v.to(ctx, created, published))
		}
		if err != nil {
			return false, failure{"NodeExpandVolume", err}.Error()
		}
	}
	return true, ""
}

// expandOffline expands a volume that only grows while it is not in use.
func (x *exam) expandOffline(ctx context.Context, v *vol, want int64) (online bool, problem string) {
	if err := v.to(ctx, created); err != nil {
		return false, err.Error()
	}
	r, err := v.growVolume(ctx, want)
	if err != nil {
		return false, failure{"ControllerExpandVolume", err}.Error()
	}
	if err := v.to(ctx, published); err != nil {
		return false, err.Error()
	}
	if r.GetNodeExpansionRequired() {
		return true, errorText(v.growOnNode(ctx, want))
	}
	return true, ""
}

func (v *vol) growOnNode(ctx context.Context, want int64) error {
	return v.x.retryWhileBusy(ctx, func(ctx context.Context) error {
		r := &csipb.NodeExpandVolumeRequest{
			VolumeId: v.id(), VolumePath: v.targets[0], CapacityRange: &csipb.CapacityRange{RequiredBytes: want},
			VolumeCapability: v.capability, Secrets: v.x.Secrets,
		}
		if v.x.node.d.Node.StageUnstage {
			r.StagingTargetPath = v.staging()
		}
		_, err := do(ctx, v.x, v.x.serve().NodeExpandVolume, r)
		return err
	})
}

// largerThan returns what is wrong after an expansion: the filesystem must be larger than it was, and have its data.
func (v *vol) largerThan(before int64) string {
	after, err := v.x.sizeOf(v.targets[0])
	switch {
	case err != nil:
		return err.Error()
	case after <= before:
		return fmt.Sprintf("the filesystem has %d bytes, and had %d", after, before)
	}
	if err := v.holds(v.targets[0], "before"); err != nil {
		return fmt.Sprintf("the data is lost: %v", err)
	}
	return ""
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	var f failure
	if errors.As(err, &f) {
		return f.Error()
	}
	return csi.Describe(err)
}
