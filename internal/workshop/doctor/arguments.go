package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/workshop/scratch"
)

// rpc is a call of CSI, as the clients have it.
type rpc[Q, A any] = func(context.Context, Q, ...grpc.CallOption) (A, error)

// probe returns a call whose answer is of no interest.
func probe[Q, A any](x *exam, call rpc[Q, A], request Q) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := do(ctx, x, call, request)
		return err
	}
}

// question is a call and the codes that may answer it.
type question struct {
	call string
	ask  func(context.Context) error
	want []codes.Code
}

// answers asks questions one after the other and returns what is answered wrongly.
func answers(ctx context.Context, all []question) []string {
	var problems []string
	for _, q := range all {
		if problem := answered(q.call, q.ask(ctx), q.want...); problem != "" {
			problems = append(problems, problem)
		}
	}
	return problems
}

// method is a call for a volume, with a request that has all that it needs.
type method struct {
	promised bool
	request  proto.Message
	// required are the fields that no request may lack.
	required []protoreflect.Name
	ask      func(proto.Message) func(context.Context) error
}

func methodOf[Q proto.Message, A any](
	x *exam, promised bool, call rpc[Q, A], request Q, required ...protoreflect.Name,
) method {
	return method{promised, request, required, func(r proto.Message) func(context.Context) error {
		return probe(x, call, r.(Q))
	}}
}

func (m method) name() string {
	return strings.TrimSuffix(string(m.request.ProtoReflect().Descriptor().Name()), "Request")
}

// lacks returns a call without a field.
func (m method) lacks(field protoreflect.Name) func(context.Context) error {
	r := proto.Clone(m.request)
	r.ProtoReflect().Clear(r.ProtoReflect().Descriptor().Fields().ByName(field))
	return m.ask(r)
}

// empty returns a call that has no effect: without the fields that it needs, if there are any.
func (m method) empty() func(context.Context) error {
	if len(m.required) == 0 {
		return m.ask(m.request)
	}
	return m.ask(m.request.ProtoReflect().New().Interface())
}

// methods returns the calls that depend on capabilities.
func (x *exam) methods(v *vol) (all []method) {
	if x.controller != nil {
		all = append(x.volumeMethods(v), x.otherMethods(v)...)
	}
	if x.info.ID == "" {
		return all
	}
	n, node, id, staging, target := x.serve(), x.node.d.Node, v.id(), v.staging(), v.targets[0]
	return append(all,
		methodOf(x, node.StageUnstage, n.NodeStageVolume, v.stageRequest(),
			"volume_id", "staging_target_path", "volume_capability"),
		methodOf(x, node.StageUnstage, n.NodeUnstageVolume,
			&csipb.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging}, "volume_id", "staging_target_path"),
		methodOf(x, node.Stats, n.NodeGetVolumeStats,
			&csipb.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target}, "volume_id", "volume_path"),
		methodOf(x, node.Expand, n.NodeExpandVolume,
			&csipb.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target, VolumeCapability: v.capability},
			"volume_id", "volume_path"),
		methodOf(x, node.VolumeHealth, n.NodeGetVolumeHealth,
			&csipb.NodeGetVolumeHealthRequest{VolumeId: id, VolumePublishPath: target}, "volume_id"),
		methodOf(x, node.StorageHealth, n.NodeGetStorageHealth, &csipb.NodeGetStorageHealthRequest{}))
}

func (x *exam) volumeMethods(v *vol) []method {
	p, c, id := x.promises(), x.control(), v.id()
	another := v.createRequest()
	another.Name = x.newName()
	return []method{
		methodOf(x, p.CreateDelete, x.accidental, another, "name", "volume_capabilities"),
		methodOf(x, p.CreateDelete, c.DeleteVolume,
			&csipb.DeleteVolumeRequest{VolumeId: id, Secrets: x.Secrets}, "volume_id"),
		methodOf(x, p.CreateDelete, c.ValidateVolumeCapabilities, &csipb.ValidateVolumeCapabilitiesRequest{
			VolumeId: id, VolumeCapabilities: []*csipb.VolumeCapability{v.capability},
		}, "volume_id", "volume_capabilities"),
		methodOf(x, p.PublishUnpublish, c.ControllerPublishVolume, v.attachRequest(),
			"volume_id", "node_id", "volume_capability"),
		methodOf(x, p.PublishUnpublish, c.ControllerUnpublishVolume, &csipb.ControllerUnpublishVolumeRequest{
			VolumeId: id, NodeId: x.info.ID, Secrets: x.Secrets,
		}, "volume_id"),
		methodOf(x, p.Expand, c.ControllerExpandVolume, v.growRequest(2*x.Size), "volume_id", "capacity_range"),
		methodOf(x, p.GetVolume, c.ControllerGetVolume, &csipb.ControllerGetVolumeRequest{VolumeId: id}, "volume_id"),
		methodOf(x, p.Modify, c.ControllerModifyVolume, &csipb.ControllerModifyVolumeRequest{VolumeId: id}, "volume_id"),
		methodOf(x, p.GetVolumeHealth, c.ControllerGetVolumeHealth,
			&csipb.ControllerGetVolumeHealthRequest{VolumeId: id}, "volume_id"),
	}
}

func (x *exam) otherMethods(v *vol) []method {
	p, c := x.promises(), x.control()
	return []method{
		methodOf(x, p.ListVolumes, c.ListVolumes, &csipb.ListVolumesRequest{MaxEntries: 1}),
		methodOf(x, p.GetCapacity, c.GetCapacity, &csipb.GetCapacityRequest{Parameters: x.Parameters}),
		methodOf(x, p.ListVolumeHealth, c.ControllerListVolumeHealth,
			&csipb.ControllerListVolumeHealthRequest{MaxEntries: 1}),
		methodOf(x, p.Snapshot, c.CreateSnapshot,
			&csipb.CreateSnapshotRequest{Name: x.newName(), SourceVolumeId: v.id()}, "name", "source_volume_id"),
		methodOf(x, p.Snapshot, c.DeleteSnapshot, &csipb.DeleteSnapshotRequest{SnapshotId: "none"}, "snapshot_id"),
		methodOf(x, p.GetSnapshot, c.GetSnapshot, &csipb.GetSnapshotRequest{SnapshotId: "none"}, "snapshot_id"),
		methodOf(x, p.ListSnapshots, c.ListSnapshots, &csipb.ListSnapshotsRequest{MaxEntries: 1}),
		methodOf(x, x.hasMetadata(), x.allocated(), &csipb.GetMetadataAllocatedRequest{}),
		methodOf(x, x.hasMetadata(), x.delta(), &csipb.GetMetadataDeltaRequest{}),
	}
}

// allMethods adds the calls that every node has to those that depend on capabilities.
func (x *exam) allMethods(v *vol) []method {
	all, target := x.methods(v), v.targets[0]
	if !x.mounts() {
		return all
	}
	return append(all,
		methodOf(x, true, x.serve().NodePublishVolume, v.publishRequest(target),
			"volume_id", "target_path", "volume_capability"),
		methodOf(x, true, x.serve().NodeUnpublishVolume,
			&csipb.NodeUnpublishVolumeRequest{VolumeId: v.id(), TargetPath: target}, "volume_id", "target_path"))
}

// accidental is CreateVolume where it must not create a volume; one that it creates is deleted.
func (x *exam) accidental(
	ctx context.Context, r *csipb.CreateVolumeRequest, opts ...grpc.CallOption,
) (*csipb.CreateVolumeResponse, error) {
	answer, err := x.control().CreateVolume(ctx, r, opts...)
	if err == nil {
		x.adopt(answer.GetVolume())
	}
	return answer, err
}

// checkRequiredFields makes calls that lack a required field of a volume that exists.
func (x *exam) checkRequiredFields(ctx context.Context, v *vol) verdict {
	var all []question
	for _, m := range x.allMethods(v) {
		for _, field := range m.required {
			if !m.promised {
				continue
			}
			what := "a " + string(field)
			switch field {
			case "volume_capability":
				what = "a capability"
			case "volume_capabilities":
				what = "capabilities"
			}
			all = append(all, question{m.name() + " without " + what, m.lacks(field), []codes.Code{codes.InvalidArgument}})
		}
	}
	before := x.effects(ctx)
	problems := answers(ctx, all)
	if after := x.effects(ctx); after != before {
		problems = append(problems, fmt.Sprintf("such calls have an effect: there were %s, now there are %s", before, after))
	}
	return oneOf(problems, "a call that lacks a field is refused with INVALID_ARGUMENT")
}

// effects says how many volumes and mounts there are.
func (x *exam) effects(ctx context.Context) string {
	volumes := "volumes"
	if x.lists() {
		if all, err := x.listed(ctx); err == nil {
			volumes = fmt.Sprint(len(all), " volumes")
		}
	}
	below, _ := scratch.Mounts(x.dir.Root)
	return fmt.Sprint(volumes, " and ", len(below), " mounts")
}

// checkUnknownIDs makes calls for a volume that was deleted: its id has the form of the driver's ids, and there is no
// such volume.
func (x *exam) checkUnknownIDs(ctx context.Context, v *vol) verdict {
	gone := *v
	if err := errors.Join(v.to(ctx, none), x.shared.to(ctx, created), gone.makePaths()); err != nil {
		return skipped(err)
	}
	var all []question
	for _, m := range x.allMethods(&gone) {
		if !m.promised || !slices.Contains(m.required, "volume_id") {
			continue
		}
		want := []codes.Code{codes.NotFound}
		switch name := m.name(); {
		case name == "DeleteVolume":
			want = []codes.Code{codes.OK}
		case strings.Contains(name, "Unpublish"), strings.Contains(name, "Unstage"):
			want = append(want, codes.OK)
		}
		all = append(all, question{m.name() + " of a deleted volume", m.ask(m.request), want})
	}
	return oneOf(answers(ctx, append(all, x.unknownOthers(&gone)...)),
		"what does not exist is NOT_FOUND, and to delete it is a success")
}

// unknownOthers returns questions about nodes, snapshots and sources that do not exist.
func (x *exam) unknownOthers(gone *vol) (all []question) {
	c, p := x.control(), x.promises()
	missing, unknown := []codes.Code{codes.NotFound}, gone.id()+"0"
	if p.PublishUnpublish {
		elsewhere := x.shared.attachRequest()
		elsewhere.NodeId = "volplane-doctor-no-such-node"
		all = append(all, question{
			"ControllerPublishVolume to an unknown node", probe(x, c.ControllerPublishVolume, elsewhere), missing,
		}, question{
			"ControllerUnpublishVolume from an unknown node", probe(x, c.ControllerUnpublishVolume,
				&csipb.ControllerUnpublishVolumeRequest{VolumeId: elsewhere.VolumeId, NodeId: elsewhere.NodeId}),
			[]codes.Code{codes.OK, codes.NotFound},
		})
	}
	if x.canClone() {
		all = append(all,
			question{"CreateVolume from a deleted volume", x.copyOf(fromVolume(gone.id())).create, missing})
	}
	if x.canSnapshot() {
		all = append(all, question{
			"CreateVolume from an unknown snapshot", x.copyOf(fromSnapshot(unknown)).create, missing,
		}, question{"CreateSnapshot of a deleted volume", func(ctx context.Context) error {
			_, err := gone.snapshot(ctx, x.newName())
			return err
		}, missing}, question{
			"DeleteSnapshot of an unknown snapshot", probe(x, c.DeleteSnapshot,
				&csipb.DeleteSnapshotRequest{SnapshotId: unknown, Secrets: x.Secrets}),
			[]codes.Code{codes.OK},
		})
	}
	if p.GetSnapshot {
		all = append(all, question{
			"GetSnapshot of an unknown snapshot",
			probe(x, c.GetSnapshot, &csipb.GetSnapshotRequest{SnapshotId: unknown, Secrets: x.Secrets}), missing,
		})
	}
	return all
}

// checkParameters compares volumes of the same name with other parameters, which are opaque: the driver may refuse the
// new one or take it for the same volume, but must not make a second one.
func (x *exam) checkParameters(ctx context.Context, v *vol) verdict {
	r := v.createRequest()
	r.Parameters = maps.Clone(r.Parameters)
	if r.Parameters == nil {
		r.Parameters = map[string]string{}
	}
	r.Parameters["volplane-doctor"] = "another"
	answer, err := do(ctx, x, x.control().CreateVolume, r)
	if err == nil && answer.GetVolume().GetVolumeId() != v.id() {
		x.adopt(answer.GetVolume())
		return fail("one name with other parameters gives a second volume")
	}
	if err == nil {
		return pass("parameters that the driver does not know change nothing")
	}
	return pass("another parameter is refused: %s", csi.Code(err))
}
