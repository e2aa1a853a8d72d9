package doctor

import (
	"context"
	"fmt"
	"maps"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/scratch"
)

// probe returns a call whose answer is of no interest.
func probe[Q, A any](
	x *exam, call func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) func(context.Context) error {
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

// answers asks questions and returns what is answered wrongly.
func answers(ctx context.Context, all []question) []string {
	var problems []string
	for _, q := range all {
		if problem := answered(q.call, q.ask(ctx), q.want...); problem != "" {
			problems = append(problems, problem)
		}
	}
	return problems
}

// without returns questions that lack a field.
func without(call string, asks map[string]func(context.Context) error) []question {
	var all []question
	for field, ask := range asks {
		all = append(all, question{call + " without " + field, ask, []codes.Code{codes.InvalidArgument}})
	}
	return all
}

type asks = map[string]func(context.Context) error

// checkRequiredFields makes calls that lack a required field of a volume that exists.
func (x *exam) checkRequiredFields(ctx context.Context) verdict {
	if err := x.shared.to(ctx, created); err != nil {
		return unable(err)
	}
	before := x.effects(ctx)
	problems := answers(ctx, x.incompleteControl())
	if x.mounts() {
		problems = append(problems, answers(ctx, x.incompleteNode())...)
	}
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

func (x *exam) incompleteControl() []question {
	v, c, p := x.shared, x.control(), x.promises()
	id, capability := v.id(), v.capability
	some := []*csipb.VolumeCapability{capability}
	nameless, incapable := v.createRequest(), v.createRequest()
	nameless.Name, incapable.Name, incapable.VolumeCapabilities = "", x.newName(), nil
	all := without("CreateVolume", asks{
		"a name": probe(x, c.CreateVolume, nameless), "capabilities": x.accidental(incapable),
	})
	all = append(all, without("DeleteVolume",
		asks{"a volume_id": probe(x, c.DeleteVolume, &csipb.DeleteVolumeRequest{})})...)
	all = append(all, without("ValidateVolumeCapabilities", asks{
		"a volume_id": probe(x, c.ValidateVolumeCapabilities,
			&csipb.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: some}),
		"capabilities": probe(x, c.ValidateVolumeCapabilities, &csipb.ValidateVolumeCapabilitiesRequest{VolumeId: id}),
	})...)
	if p.PublishUnpublish {
		node := x.info.ID
		all = append(all, without("ControllerPublishVolume", asks{
			"a volume_id": probe(x, c.ControllerPublishVolume,
				&csipb.ControllerPublishVolumeRequest{NodeId: node, VolumeCapability: capability}),
			"a node_id": probe(x, c.ControllerPublishVolume,
				&csipb.ControllerPublishVolumeRequest{VolumeId: id, VolumeCapability: capability}),
			"a capability": probe(x, c.ControllerPublishVolume,
				&csipb.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node}),
		})...)
		all = append(all, without("ControllerUnpublishVolume", asks{
			"a volume_id": probe(x, c.ControllerUnpublishVolume, &csipb.ControllerUnpublishVolumeRequest{NodeId: node}),
		})...)
	}
	return append(all, x.incompleteMore(id)...)
}

// accidental returns a call that must not create a volume; one that it creates is deleted.
func (x *exam) accidental(r *csipb.CreateVolumeRequest) func(context.Context) error {
	return func(ctx context.Context) error {
		answer, err := do(ctx, x, x.control().CreateVolume, r)
		if err == nil {
			x.adopt(answer.GetVolume())
		}
		return err
	}
}

func (x *exam) incompleteMore(id string) []question {
	c, p := x.control(), x.promises()
	var all []question
	if p.Expand {
		all = append(all, without("ControllerExpandVolume", asks{
			"a volume_id": probe(x, c.ControllerExpandVolume,
				&csipb.ControllerExpandVolumeRequest{CapacityRange: &csipb.CapacityRange{RequiredBytes: x.Size}}),
			"a capacity_range": probe(x, c.ControllerExpandVolume, &csipb.ControllerExpandVolumeRequest{VolumeId: id}),
		})...)
	}
	if p.Snapshot {
		all = append(all, without("CreateSnapshot", asks{
			"a name":             probe(x, c.CreateSnapshot, &csipb.CreateSnapshotRequest{SourceVolumeId: id}),
			"a source_volume_id": probe(x, c.CreateSnapshot, &csipb.CreateSnapshotRequest{Name: x.newName()}),
		})...)
		all = append(all, without("DeleteSnapshot",
			asks{"a snapshot_id": probe(x, c.DeleteSnapshot, &csipb.DeleteSnapshotRequest{})})...)
	}
	if p.GetVolume {
		all = append(all, without("ControllerGetVolume",
			asks{"a volume_id": probe(x, c.ControllerGetVolume, &csipb.ControllerGetVolumeRequest{})})...)
	}
	if p.Modify {
		all = append(all, without("ControllerModifyVolume",
			asks{"a volume_id": probe(x, c.ControllerModifyVolume, &csipb.ControllerModifyVolumeRequest{})})...)
	}
	if p.GetSnapshot {
		all = append(all, without("GetSnapshot",
			asks{"a snapshot_id": probe(x, c.GetSnapshot, &csipb.GetSnapshotRequest{})})...)
	}
	if p.GetVolumeHealth {
		all = append(all, without("ControllerGetVolumeHealth",
			asks{"a volume_id": probe(x, c.ControllerGetVolumeHealth, &csipb.ControllerGetVolumeHealthRequest{})})...)
	}
	return all
}

func (x *exam) incompleteNode() []question {
	v, n, node := x.shared, x.serve(), x.node.d.Node
	id, capability, staging, target := v.id(), v.capability, v.staging(), v.targets[0]
	all := without("NodePublishVolume", asks{
		"a volume_id": probe(x, n.NodePublishVolume, &csipb.NodePublishVolumeRequest{
			TargetPath: target, StagingTargetPath: staging, VolumeCapability: capability,
		}),
		"a target_path": probe(x, n.NodePublishVolume,
			&csipb.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: capability}),
		"a capability": probe(x, n.NodePublishVolume,
			&csipb.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: target}),
	})
	all = append(all, without("NodeUnpublishVolume", asks{
		"a volume_id":   probe(x, n.NodeUnpublishVolume, &csipb.NodeUnpublishVolumeRequest{TargetPath: target}),
		"a target_path": probe(x, n.NodeUnpublishVolume, &csipb.NodeUnpublishVolumeRequest{VolumeId: id}),
	})...)
	if node.StageUnstage {
		all = append(all, without("NodeStageVolume", asks{
			"a volume_id": probe(x, n.NodeStageVolume,
				&csipb.NodeStageVolumeRequest{StagingTargetPath: staging, VolumeCapability: capability}),
			"a staging_target_path": probe(x, n.NodeStageVolume,
				&csipb.NodeStageVolumeRequest{VolumeId: id, VolumeCapability: capability}),
			"a capability": probe(x, n.NodeStageVolume,
				&csipb.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging}),
		})...)
		all = append(all, without("NodeUnstageVolume", asks{
			"a volume_id":           probe(x, n.NodeUnstageVolume, &csipb.NodeUnstageVolumeRequest{StagingTargetPath: staging}),
			"a staging_target_path": probe(x, n.NodeUnstageVolume, &csipb.NodeUnstageVolumeRequest{VolumeId: id}),
		})...)
	}
	if node.Stats {
		all = append(all, without("NodeGetVolumeStats", asks{
			"a volume_id":   probe(x, n.NodeGetVolumeStats, &csipb.NodeGetVolumeStatsRequest{VolumePath: target}),
			"a volume_path": probe(x, n.NodeGetVolumeStats, &csipb.NodeGetVolumeStatsRequest{VolumeId: id}),
		})...)
	}
	if node.Expand {
		all = append(all, without("NodeExpandVolume", asks{
			"a volume_id": probe(x, n.NodeExpandVolume, &csipb.NodeExpandVolumeRequest{VolumePath: target}),
			"a volume_path": probe(x, n.NodeExpandVolume,
				&csipb.NodeExpandVolumeRequest{VolumeId: id, VolumeCapability: capability}),
		})...)
	}
	if node.VolumeHealth {
		all = append(all, without("NodeGetVolumeHealth", asks{
			"a volume_id": probe(x, n.NodeGetVolumeHealth, &csipb.NodeGetVolumeHealthRequest{VolumePublishPath: target}),
		})...)
	}
	return all
}

// checkUnknownIDs makes calls for a volume that was deleted: its id has the form of the driver's ids, and there is no
// such volume.
func (x *exam) checkUnknownIDs(ctx context.Context) verdict {
	v := x.volume()
	if err := v.to(ctx, created); err != nil {
		return unable(err)
	}
	gone := *v
	if err := v.to(ctx, none); err != nil {
		return unable(err)
	}
	if err := x.shared.to(ctx, created); err != nil {
		return unable(err)
	}
	problems := answers(ctx, x.unknownControl(&gone))
	if x.mounts() {
		problems = append(problems, answers(ctx, x.unknownNode(&gone))...)
	}
	return oneOf(problems, "what does not exist is NOT_FOUND, and to delete it is a success")
}

func (x *exam) unknownControl(gone *vol) []question {
	c, p := x.control(), x.promises()
	notFound, fine := []codes.Code{codes.NotFound}, []codes.Code{codes.OK, codes.NotFound}
	all := []question{
		{"DeleteVolume of a deleted volume", gone.remove, []codes.Code{codes.OK}},
		{
			"ValidateVolumeCapabilities of a deleted volume",
			probe(x, c.ValidateVolumeCapabilities, &csipb.ValidateVolumeCapabilitiesRequest{
				VolumeId: gone.id(), VolumeCapabilities: []*csipb.VolumeCapability{gone.capability},
			}), notFound,
		},
	}
	if p.PublishUnpublish {
		elsewhere := x.shared.attachRequest()
		elsewhere.NodeId = "volplane-doctor-no-such-node"
		all = append(all,
			question{"ControllerPublishVolume of a deleted volume", gone.attach, notFound},
			question{
				"ControllerPublishVolume to an unknown node", probe(x, c.ControllerPublishVolume, elsewhere), notFound,
			},
			question{"ControllerUnpublishVolume of a deleted volume", gone.detach, fine},
			question{
				"ControllerUnpublishVolume from an unknown node",
				probe(x, c.ControllerUnpublishVolume,
					&csipb.ControllerUnpublishVolumeRequest{VolumeId: elsewhere.VolumeId, NodeId: elsewhere.NodeId}), fine,
			})
	}
	if p.Expand {
		all = append(all, question{"ControllerExpandVolume of a deleted volume", func(ctx context.Context) error {
			_, err := gone.growVolume(ctx, 2*x.Size)
			return err
		}, notFound})
	}
	if p.GetVolume {
		all = append(all, question{
			"ControllerGetVolume of a deleted volume",
			probe(x, c.ControllerGetVolume, &csipb.ControllerGetVolumeRequest{VolumeId: gone.id()}), notFound,
		})
	}
	if p.Modify {
		all = append(all, question{
			"ControllerModifyVolume of a deleted volume",
			probe(x, c.ControllerModifyVolume, &csipb.ControllerModifyVolumeRequest{VolumeId: gone.id()}), notFound,
		})
	}
	if p.GetVolumeHealth {
		all = append(all, question{
			"ControllerGetVolumeHealth of a deleted volume",
			probe(x, c.ControllerGetVolumeHealth, &csipb.ControllerGetVolumeHealthRequest{VolumeId: gone.id()}), notFound,
		})
	}
	return append(all, x.unknownSources(gone)...)
}

func (x *exam) unknownSources(gone *vol) []question {
	notFound := []codes.Code{codes.NotFound}
	var all []question
	if x.clones() {
		v := x.copyOf(fromVolume(gone.id()))
		all = append(all, question{"CreateVolume from a deleted volume", v.create, notFound})
	}
	if x.snaps() {
		v := x.copyOf(fromSnapshot(gone.id() + "0"))
		all = append(all, question{"CreateVolume from an unknown snapshot", v.create, notFound},
			question{"CreateSnapshot of a deleted volume", func(ctx context.Context) error {
				_, err := gone.snapshot(ctx, x.newName())
				return err
			}, notFound},
			question{"DeleteSnapshot of an unknown snapshot", func(ctx context.Context) error {
				return x.removeSnapshot(ctx, gone.id()+"0")
			}, []codes.Code{codes.OK}})
	}
	if x.promises().GetSnapshot {
		all = append(all, question{"GetSnapshot of an unknown snapshot", func(ctx context.Context) error {
			_, err := x.get(ctx, gone.id()+"0")
			return err
		}, notFound})
	}
	return all
}

func (x *exam) unknownNode(gone *vol) []question {
	n, node := x.serve(), x.node.d.Node
	notFound, fine := []codes.Code{codes.NotFound}, []codes.Code{codes.OK, codes.NotFound}
	var all []question
	if node.StageUnstage {
		all = append(all, question{"NodeStageVolume of a deleted volume", gone.stage, notFound},
			question{"NodeUnstageVolume of a deleted volume", gone.unstage, fine})
	}
	all = append(all, question{"NodePublishVolume of a deleted volume", gone.publish, notFound},
		question{"NodeUnpublishVolume of a deleted volume", gone.unpublish, fine})
	if node.Stats {
		all = append(all, question{
			"NodeGetVolumeStats of a deleted volume",
			probe(x, n.NodeGetVolumeStats,
				&csipb.NodeGetVolumeStatsRequest{VolumeId: gone.id(), VolumePath: gone.targets[0]}), notFound,
		})
	}
	if node.Expand {
		all = append(all, question{
			"NodeExpandVolume of a deleted volume",
			probe(x, n.NodeExpandVolume, &csipb.NodeExpandVolumeRequest{VolumeId: gone.id(), VolumePath: gone.targets[0]}),
			notFound,
		})
	}
	if node.VolumeHealth {
		all = append(all, question{
			"NodeGetVolumeHealth of a deleted volume",
			probe(x, n.NodeGetVolumeHealth,
				&csipb.NodeGetVolumeHealthRequest{VolumeId: gone.id(), VolumePublishPath: gone.targets[0]}), notFound,
		})
	}
	return all
}

// checkParameters compares volumes of the same name with other parameters, which are opaque: the driver may refuse the
// new one or take it for the same volume, but must not make a second one.
func (x *exam) checkParameters(ctx context.Context) verdict {
	if err := x.shared.to(ctx, created); err != nil {
		return unable(err)
	}
	r := x.shared.createRequest()
	r.Parameters = maps.Clone(r.Parameters)
	if r.Parameters == nil {
		r.Parameters = map[string]string{}
	}
	r.Parameters["volplane-doctor"] = "another"
	answer, err := do(ctx, x, x.control().CreateVolume, r)
	if err == nil && answer.GetVolume().GetVolumeId() != x.shared.id() {
		x.adopt(answer.GetVolume())
		return wrong("one name with other parameters gives a second volume")
	}
	if err == nil {
		return well("parameters that the driver does not know change nothing")
	}
	return well("another parameter is refused: %s", csi.Code(err))
}
