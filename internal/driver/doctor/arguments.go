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

// questions are asked one after the other.
type questions []question

// add adds a question if the driver has the call.
func (q *questions) add(has bool, call string, ask func(context.Context) error, want ...codes.Code) {
	if has {
		*q = append(*q, question{call, ask, want})
	}
}

// without adds questions that lack a field, if the driver has the call.
func (q *questions) without(has bool, call string, of asks) {
	for field, ask := range of {
		q.add(has, call+" without "+field, ask, codes.InvalidArgument)
	}
}

// answers asks questions and returns what is answered wrongly.
func answers(ctx context.Context, all questions) []string {
	var problems []string
	for _, q := range all {
		if problem := answered(q.call, q.ask(ctx), q.want...); problem != "" {
			problems = append(problems, problem)
		}
	}
	return problems
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

func (x *exam) incompleteControl() (all questions) {
	v, c, p := x.shared, x.control(), x.promises()
	id, node, capability := v.id(), x.info.ID, v.capability
	some := []*csipb.VolumeCapability{capability}
	nameless, incapable := v.createRequest(), v.createRequest()
	nameless.Name, incapable.Name, incapable.VolumeCapabilities = "", x.newName(), nil
	all.without(true, "CreateVolume", asks{
		"a name": probe(x, c.CreateVolume, nameless), "capabilities": x.accidental(incapable),
	})
	all.without(true, "DeleteVolume", asks{"a volume_id": probe(x, c.DeleteVolume, &csipb.DeleteVolumeRequest{})})
	all.without(true, "ValidateVolumeCapabilities", asks{
		"a volume_id": probe(x, c.ValidateVolumeCapabilities,
			&csipb.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: some}),
		"capabilities": probe(x, c.ValidateVolumeCapabilities, &csipb.ValidateVolumeCapabilitiesRequest{VolumeId: id}),
	})
	all.without(p.PublishUnpublish, "ControllerPublishVolume", asks{
		"a volume_id": probe(x, c.ControllerPublishVolume,
			&csipb.ControllerPublishVolumeRequest{NodeId: node, VolumeCapability: capability}),
		"a node_id": probe(x, c.ControllerPublishVolume,
			&csipb.ControllerPublishVolumeRequest{VolumeId: id, VolumeCapability: capability}),
		"a capability": probe(x, c.ControllerPublishVolume,
			&csipb.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node}),
	})
	all.without(p.PublishUnpublish, "ControllerUnpublishVolume", asks{
		"a volume_id": probe(x, c.ControllerUnpublishVolume, &csipb.ControllerUnpublishVolumeRequest{NodeId: node}),
	})
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

func (x *exam) incompleteMore(id string) (all questions) {
	c, p := x.control(), x.promises()
	all.without(p.Expand, "ControllerExpandVolume", asks{
		"a volume_id": probe(x, c.ControllerExpandVolume,
			&csipb.ControllerExpandVolumeRequest{CapacityRange: &csipb.CapacityRange{RequiredBytes: x.Size}}),
		"a capacity_range": probe(x, c.ControllerExpandVolume, &csipb.ControllerExpandVolumeRequest{VolumeId: id}),
	})
	if p.Snapshot {
		all.without(true, "CreateSnapshot", asks{
			"a name":             probe(x, c.CreateSnapshot, &csipb.CreateSnapshotRequest{SourceVolumeId: id}),
			"a source_volume_id": probe(x, c.CreateSnapshot, &csipb.CreateSnapshotRequest{Name: x.newName()}),
		})
	}
	all.without(p.Snapshot, "DeleteSnapshot",
		asks{"a snapshot_id": probe(x, c.DeleteSnapshot, &csipb.DeleteSnapshotRequest{})})
	all.without(p.GetVolume, "ControllerGetVolume",
		asks{"a volume_id": probe(x, c.ControllerGetVolume, &csipb.ControllerGetVolumeRequest{})})
	all.without(p.Modify, "ControllerModifyVolume",
		asks{"a volume_id": probe(x, c.ControllerModifyVolume, &csipb.ControllerModifyVolumeRequest{})})
	all.without(p.GetSnapshot, "GetSnapshot",
		asks{"a snapshot_id": probe(x, c.GetSnapshot, &csipb.GetSnapshotRequest{})})
	all.without(p.GetVolumeHealth, "ControllerGetVolumeHealth",
		asks{"a volume_id": probe(x, c.ControllerGetVolumeHealth, &csipb.ControllerGetVolumeHealthRequest{})})
	return all
}

func (x *exam) incompleteNode() (all questions) {
	v, n, node := x.shared, x.serve(), x.node.d.Node
	id, capability, staging, target := v.id(), v.capability, v.staging(), v.targets[0]
	all.without(true, "NodePublishVolume", asks{
		"a volume_id": probe(x, n.NodePublishVolume, &csipb.NodePublishVolumeRequest{
			TargetPath: target, StagingTargetPath: staging, VolumeCapability: capability,
		}),
		"a target_path": probe(x, n.NodePublishVolume,
			&csipb.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: capability}),
		"a capability": probe(x, n.NodePublishVolume,
			&csipb.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: target}),
	})
	all.without(true, "NodeUnpublishVolume", asks{
		"a volume_id":   probe(x, n.NodeUnpublishVolume, &csipb.NodeUnpublishVolumeRequest{TargetPath: target}),
		"a target_path": probe(x, n.NodeUnpublishVolume, &csipb.NodeUnpublishVolumeRequest{VolumeId: id}),
	})
	all.without(node.StageUnstage, "NodeStageVolume", asks{
		"a volume_id": probe(x, n.NodeStageVolume,
			&csipb.NodeStageVolumeRequest{StagingTargetPath: staging, VolumeCapability: capability}),
		"a staging_target_path": probe(x, n.NodeStageVolume,
			&csipb.NodeStageVolumeRequest{VolumeId: id, VolumeCapability: capability}),
		"a capability": probe(x, n.NodeStageVolume,
			&csipb.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging}),
	})
	all.without(node.StageUnstage, "NodeUnstageVolume", asks{
		"a volume_id":           probe(x, n.NodeUnstageVolume, &csipb.NodeUnstageVolumeRequest{StagingTargetPath: staging}),
		"a staging_target_path": probe(x, n.NodeUnstageVolume, &csipb.NodeUnstageVolumeRequest{VolumeId: id}),
	})
	all.without(node.Stats, "NodeGetVolumeStats", asks{
		"a volume_id":   probe(x, n.NodeGetVolumeStats, &csipb.NodeGetVolumeStatsRequest{VolumePath: target}),
		"a volume_path": probe(x, n.NodeGetVolumeStats, &csipb.NodeGetVolumeStatsRequest{VolumeId: id}),
	})
	all.without(node.Expand, "NodeExpandVolume", asks{
		"a volume_id": probe(x, n.NodeExpandVolume, &csipb.NodeExpandVolumeRequest{VolumePath: target}),
		"a volume_path": probe(x, n.NodeExpandVolume,
			&csipb.NodeExpandVolumeRequest{VolumeId: id, VolumeCapability: capability}),
	})
	all.without(node.VolumeHealth, "NodeGetVolumeHealth", asks{
		"a volume_id": probe(x, n.NodeGetVolumeHealth, &csipb.NodeGetVolumeHealthRequest{VolumePublishPath: target}),
	})
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

func (x *exam) unknownControl(gone *vol) (all questions) {
	c, p, id := x.control(), x.promises(), gone.id()
	all.add(true, "DeleteVolume of a deleted volume", gone.remove, codes.OK)
	all.add(true, "ValidateVolumeCapabilities of a deleted volume",
		probe(x, c.ValidateVolumeCapabilities, &csipb.ValidateVolumeCapabilitiesRequest{
			VolumeId: id, VolumeCapabilities: []*csipb.VolumeCapability{gone.capability},
		}), codes.NotFound)
	if p.PublishUnpublish {
		elsewhere := x.shared.attachRequest()
		elsewhere.NodeId = "volplane-doctor-no-such-node"
		all.add(true, "ControllerPublishVolume of a deleted volume", gone.attach, codes.NotFound)
		all.add(true, "ControllerPublishVolume to an unknown node", probe(x, c.ControllerPublishVolume, elsewhere),
			codes.NotFound)
		all.add(true, "ControllerUnpublishVolume of a deleted volume", gone.detach, codes.OK, codes.NotFound)
		all.add(true, "ControllerUnpublishVolume from an unknown node", probe(x, c.ControllerUnpublishVolume,
			&csipb.ControllerUnpublishVolumeRequest{VolumeId: elsewhere.VolumeId, NodeId: elsewhere.NodeId}),
			codes.OK, codes.NotFound)
	}
	all.add(p.Expand, "ControllerExpandVolume of a deleted volume", func(ctx context.Context) error {
		_, err := gone.growVolume(ctx, 2*x.Size)
		return err
	}, codes.NotFound)
	all.add(p.GetVolume, "ControllerGetVolume of a deleted volume",
		probe(x, c.ControllerGetVolume, &csipb.ControllerGetVolumeRequest{VolumeId: id}), codes.NotFound)
	all.add(p.Modify, "ControllerModifyVolume of a deleted volume",
		probe(x, c.ControllerModifyVolume, &csipb.ControllerModifyVolumeRequest{VolumeId: id}), codes.NotFound)
	all.add(p.GetVolumeHealth, "ControllerGetVolumeHealth of a deleted volume",
		probe(x, c.ControllerGetVolumeHealth, &csipb.ControllerGetVolumeHealthRequest{VolumeId: id}), codes.NotFound)
	return append(all, x.unknownSources(gone)...)
}

func (x *exam) unknownSources(gone *vol) (all questions) {
	if x.clones() {
		all.add(true, "CreateVolume from a deleted volume", x.copyOf(fromVolume(gone.id())).create, codes.NotFound)
	}
	unknown := gone.id() + "0"
	if x.snaps() {
		all.add(true, "CreateVolume from an unknown snapshot", x.copyOf(fromSnapshot(unknown)).create, codes.NotFound)
	}
	all.add(x.snaps(), "CreateSnapshot of a deleted volume", func(ctx context.Context) error {
		_, err := gone.snapshot(ctx, x.newName())
		return err
	}, codes.NotFound)
	all.add(x.snaps(), "DeleteSnapshot of an unknown snapshot", func(ctx context.Context) error {
		return x.removeSnapshot(ctx, unknown)
	}, codes.OK)
	all.add(x.promises().GetSnapshot, "GetSnapshot of an unknown snapshot", func(ctx context.Context) error {
		_, err := x.get(ctx, unknown)
		return err
	}, codes.NotFound)
	return all
}

func (x *exam) unknownNode(gone *vol) (all questions) {
	n, node, id, target := x.serve(), x.node.d.Node, gone.id(), gone.targets[0]
	all.add(node.StageUnstage, "NodeStageVolume of a deleted volume", gone.stage, codes.NotFound)
	all.add(node.StageUnstage, "NodeUnstageVolume of a deleted volume", gone.unstage, codes.OK, codes.NotFound)
	all.add(true, "NodePublishVolume of a deleted volume", gone.publish, codes.NotFound)
	all.add(true, "NodeUnpublishVolume of a deleted volume", gone.unpublish, codes.OK, codes.NotFound)
	all.add(node.Stats, "NodeGetVolumeStats of a deleted volume",
		probe(x, n.NodeGetVolumeStats, &csipb.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target}), codes.NotFound)
	all.add(node.Expand, "NodeExpandVolume of a deleted volume",
		probe(x, n.NodeExpandVolume, &csipb.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target}), codes.NotFound)
	all.add(node.VolumeHealth, "NodeGetVolumeHealth of a deleted volume", probe(x, n.NodeGetVolumeHealth,
		&csipb.NodeGetVolumeHealthRequest{VolumeId: id, VolumePublishPath: target}), codes.NotFound)
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
