package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/csi"
)

func createChecks() []check {
	const sameName = "find the volume by its name first; a name is one volume until it is deleted"
	return []check{
		{
			"create-volume", (*exam).creates, (*exam).checkCreate,
			"make a volume that is at least as large as required; give --parameter, --secret-file and --size if it needs them",
		},
		{"create-again", (*exam).creates, shared((*exam).checkCreateAgain, created), sameName},
		{
			"create-conflict", (*exam).creates, shared((*exam).checkCreateConflict, created),
			"compare the size with that of the volume of this name, and answer ALREADY_EXISTS if they do not fit",
		},
		{"create-parameters", (*exam).creates, shared((*exam).checkParameters, created), sameName},
		{
			"create-range", (*exam).creates, (*exam).checkCreateRange,
			"answer OUT_OF_RANGE if no size is at least required_bytes and at most limit_bytes",
		},
		{
			"create-names", (*exam).creates, (*exam).checkCreateNames,
			"do not cut names off; hash a name of up to 128 bytes if the storage allows less",
		},
		{
			"topology", func(x *exam) bool { return x.creates() && x.here() != nil }, shared((*exam).checkTopology, created),
			"make the volume where one of the requisite topologies is, and say so in accessible_topology",
		},
		{
			"validate", (*exam).creates, shared((*exam).checkValidate, created),
			"confirm the capabilities that a volume was created with",
		},
		{
			"required-fields", (*exam).creates, shared((*exam).checkRequiredFields, created),
			"check for missing fields before anything else",
		},
		{
			"unknown-ids", (*exam).creates, own((*exam).checkUnknownIDs, created),
			"answer NOT_FOUND for what does not exist, and OK when it is to be deleted",
		},
		{
			"delete-volume", (*exam).creates, own((*exam).checkDelete, created),
			"answer OK when the volume is gone, and an error as long as it is not",
		},
		{
			"delete-again", (*exam).creates, own((*exam).checkDeleteAgain, created),
			"answer OK for a volume that does not exist",
		},
	}
}

// volumeProblem judges the answer of CreateVolume.
func volumeProblem(r *csipb.CreateVolumeRequest, v *csipb.Volume) string {
	size, limit := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	has := v.GetCapacityBytes()
	switch {
	case v.GetVolumeId() == "":
		return "the volume has no id"
	case has != 0 && has < size:
		return fmt.Sprintf("the volume has %d bytes, %d were required", has, size)
	case limit > 0 && has > limit:
		return fmt.Sprintf("the volume has %d bytes, %d are the limit", has, limit)
	case r.GetVolumeContentSource() != nil && !proto.Equal(r.GetVolumeContentSource(), v.GetContentSource()):
		return "the answer does not name the source of the volume's content"
	case r.GetVolumeContentSource() == nil && v.GetContentSource() != nil:
		return "the answer names a source of the volume's content, and none was asked for"
	}
	return ""
}

func (x *exam) checkCreate(ctx context.Context) verdict {
	v := x.shared
	if err := v.to(ctx, created); err != nil {
		return fail("%v", err)
	}
	return unless(volumeProblem(v.createRequest(), v.made), "%.128q of %d bytes", v.id(), v.made.GetCapacityBytes())
}

func (x *exam) checkCreateAgain(ctx context.Context, v *vol) verdict {
	first, before := v.made, x.strangers(ctx)
	err := x.retryWhileBusy(ctx, v.create)
	second := v.made
	switch {
	case err != nil:
		return fail("the same request fails the second time: %s", csi.Describe(err))
	case first.GetVolumeId() != second.GetVolumeId():
		v.made = first
		x.adopt(second)
		return fail("the same request makes two volumes: %.128q and %.128q", first.GetVolumeId(), second.GetVolumeId())
	case !proto.Equal(withoutOrder(first), withoutOrder(second)):
		return fail("the same request is answered in two ways")
	}
	if after := x.strangers(ctx); len(after) > len(before) {
		return fail("the same request makes a second volume: %.128q", after[len(after)-1])
	}
	return pass("the same request gives the same volume")
}

// withoutOrder returns a volume whose topologies are sorted: their order means nothing.
func withoutOrder(v *csipb.Volume) *csipb.Volume {
	v = proto.Clone(v).(*csipb.Volume)
	slices.SortFunc(v.AccessibleTopology,
		func(a, b *csipb.Topology) int { return strings.Compare(a.String(), b.String()) })
	return v
}

func (x *exam) checkCreateConflict(ctx context.Context, v *vol) verdict {
	r := v.createRequest()
	// A driver may make volumes larger than required, so the other size is larger than what the volume has.
	r.CapacityRange.RequiredBytes = 2 * max(v.made.GetCapacityBytes(), v.size)
	answer, err := do(ctx, x, x.control().CreateVolume, r)
	if err == nil && answer.GetVolume().GetVolumeId() != v.id() {
		x.adopt(answer.GetVolume())
	}
	return unless(answered("CreateVolume of the same name with another size", err, codes.AlreadyExists),
		"the same name with another size is refused")
}

func (x *exam) checkCreateRange(ctx context.Context) verdict {
	r := x.shared.createRequest()
	r.Name, r.CapacityRange.LimitBytes = x.newName(), r.CapacityRange.RequiredBytes-1
	_, err := do(ctx, x, x.accidental, r)
	return unless(answered("CreateVolume with a limit below the size", err, codes.OutOfRange, codes.InvalidArgument),
		"a size that cannot be is refused")
}

// checkCreateNames makes two volumes whose names are as long as CSI allows and differ in the last byte.
func (x *exam) checkCreateNames(ctx context.Context) verdict {
	a, b := x.volume(), x.volume()
	long := a.name + strings.Repeat("-", maxString-len(a.name)-1)
	a.name, b.name = long+"a", long+"b"
	a.targets, b.targets = []string{a.target(1)}, []string{b.target(1)}
	for _, v := range []*vol{a, b} {
		if err := v.to(ctx, created); err != nil {
			return fail("a name of %d bytes: %v", len(v.name), err)
		}
	}
	if a.id() == b.id() {
		return fail("two names of %d bytes that differ in the last one are one volume", len(a.name))
	}
	return pass("names may have %d bytes", maxString)
}

// checkTopology asks for a volume of this node, and for one of a place that does not exist.
func (x *exam) checkTopology(ctx context.Context, v *vol) verdict {
	if problem := accessProblem(x.here(), v.made.GetAccessibleTopology()); problem != "" {
		return fail("%s", problem)
	}
	r := v.createRequest()
	r.Name, r.AccessibilityRequirements = x.newName(), x.nowhere()
	answer, err := do(ctx, x, x.accidental, r)
	if err == nil {
		problem := accessProblem(r.AccessibilityRequirements, answer.GetVolume().GetAccessibleTopology())
		if problem != "" {
			return fail("where the source does not exist, a volume is created: %s", problem)
		}
	}
	return pass("volumes are where they are required")
}

// nowhere returns the requirement of a place that does not exist.
func (x *exam) nowhere() *csipb.TopologyRequirement {
	segments := map[string]string{}
	for key := range x.info.Topology {
		segments[key] = "volplane-doctor-no-such-place"
	}
	return &csipb.TopologyRequirement{Requisite: []*csipb.Topology{{Segments: segments}}}
}

// accessProblem says why a volume or snapshot that can be reached from some topologies does not meet a requirement.
func accessProblem(r *csipb.TopologyRequirement, has []*csipb.Topology) string {
	for _, t := range has {
		for _, want := range r.GetRequisite() {
			if contains(want.GetSegments(), t.GetSegments()) {
				return ""
			}
		}
	}
	if len(has) == 0 {
		return "there is no accessible_topology, and a requirement was given"
	}
	return fmt.Sprintf("accessible_topology is %.200q, required was %.200q", has[0].GetSegments(),
		r.GetRequisite()[0].GetSegments())
}

// contains says whether all of part is in whole.
func contains(whole, part map[string]string) bool {
	for k, v := range part {
		if whole[k] != v {
			return false
		}
	}
	return true
}

func (x *exam) checkValidate(ctx context.Context, v *vol) verdict {
	r, err := do(ctx, x, x.control().ValidateVolumeCapabilities, &csipb.ValidateVolumeCapabilitiesRequest{
		VolumeId: v.id(), VolumeContext: v.made.GetVolumeContext(), Parameters: x.Parameters, Secrets: x.Secrets,
		VolumeCapabilities: []*csipb.VolumeCapability{v.capability},
	})
	switch {
	case err != nil:
		return fail("ValidateVolumeCapabilities: %s", csi.Describe(err))
	case r.GetConfirmed() == nil:
		return fail("the capability that the volume was created with is not confirmed: %.200q", r.GetMessage())
	case len(r.GetConfirmed().GetVolumeCapabilities()) == 0:
		return fail("confirmed has no capabilities")
	case !proto.Equal(r.GetConfirmed().GetVolumeCapabilities()[0], v.capability):
		return warn("another capability is confirmed than was asked for")
	}
	return pass("the capability that the volume was created with is confirmed")
}

func (x *exam) checkDelete(ctx context.Context, v *vol) verdict {
	id := v.id()
	if err := v.to(ctx, none); err != nil {
		return fail("%v", err)
	}
	if x.lists() {
		all, err := x.listed(ctx)
		if err != nil {
			return skipped(err)
		}
		if all[id] {
			return fail("a volume that was deleted is in the list")
		}
	}
	_, err := do(ctx, x, x.control().ValidateVolumeCapabilities, &csipb.ValidateVolumeCapabilitiesRequest{
		VolumeId: id, VolumeCapabilities: []*csipb.VolumeCapability{v.capability},
	})
	if err == nil {
		return fail("a volume that was deleted still has capabilities")
	}
	return pass("the volume is gone")
}

func (x *exam) checkDeleteAgain(ctx context.Context, v *vol) verdict {
	if err := v.to(ctx, none); err != nil {
		return skipped(err)
	}
	if err := x.retryWhileBusy(ctx, v.remove); err != nil {
		return fail("a volume that is gone cannot be deleted: %s", csi.Describe(err))
	}
	again := x.volume()
	again.name = v.name
	if err := again.to(ctx, created); err != nil {
		return fail("its name cannot be used again: %v", err)
	}
	return pass("what is gone is deleted, and its name is free")
}
