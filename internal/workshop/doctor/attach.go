package doctor

import (
	"context"
	"maps"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

func attachChecks() []check {
	return []check{
		{
			"controller-publish", (*exam).attaches, shared((*exam).checkAttach, created),
			"attach the volume to the node that NodeGetInfo names",
		},
		{
			"controller-publish-again", (*exam).attaches, shared((*exam).checkAttachAgain, attached),
			"answer OK with the same publish_context when it is attached already",
		},
		{
			"controller-publish-conflict",
			func(x *exam) bool { return x.attaches() && x.promises().PublishReadonly },
			shared((*exam).checkAttachConflict, attached), "answer ALREADY_EXISTS when it is attached in another way",
		},
		{
			"attach-limit",
			func(x *exam) bool { return x.attaches() && x.info.MaxVolumes > 0 && x.info.MaxVolumes <= mostAttached },
			(*exam).checkAttachLimit, "answer RESOURCE_EXHAUSTED when the node has max_volumes_per_node volumes",
		},
		{
			"delete-published", (*exam).attaches, own((*exam).checkDeletePublished, attached),
			"answer FAILED_PRECONDITION as long as the volume is published to a node",
		},
		{
			"published-nodes",
			func(x *exam) bool {
				return x.attaches() && (x.lists() && x.promises().ListVolumesPublishedNodes || x.promises().GetVolume)
			},
			(*exam).checkPublishedNodes, "answer with the nodes that the volume is published to, and no others",
		},
		{
			"controller-unpublish", (*exam).attaches, shared((*exam).checkDetach, attached),
			"answer OK when the volume is not published to the node, whether it ever was or not",
		},
	}
}

func (x *exam) checkAttach(ctx context.Context, v *vol) verdict {
	if err := v.to(ctx, attached); err != nil {
		return fail("%v", err)
	}
	return pass("it is attached")
}

func (x *exam) checkAttachAgain(ctx context.Context, v *vol) verdict {
	first := v.context
	if err := x.retryWhileBusy(ctx, v.attach); err != nil {
		return fail("what is attached cannot be attached again: %s", csi.Describe(err))
	}
	if !maps.Equal(first, v.context) {
		return fail("attached again, it has another publish_context")
	}
	return pass("what is attached stays as it is")
}

func (x *exam) checkAttachConflict(ctx context.Context, v *vol) verdict {
	r := v.attachRequest()
	r.Readonly = true
	_, err := do(ctx, x, x.control().ControllerPublishVolume, r)
	return unless(answered("ControllerPublishVolume with readonly of what is attached without", err, codes.AlreadyExists),
		"what is attached in another way is refused")
}

// mostAttached is the largest limit that is tried out.
const mostAttached = 16

func (x *exam) checkAttachLimit(ctx context.Context) verdict {
	var all []*vol
	if err := x.shared.to(ctx, created); err != nil {
		return skipped(err)
	}
	for range x.info.MaxVolumes + 1 {
		v := x.volume()
		if err := v.to(ctx, created); err != nil {
			return skipped(err)
		}
		all = append(all, v)
	}
	var last error
	for i, v := range all {
		if last = x.retryWhileBusy(ctx, v.attach); last != nil && i < len(all)-1 {
			return skipped(last)
		}
	}
	return unless(answered("ControllerPublishVolume of one volume more than max_volumes_per_node", last,
		codes.ResourceExhausted), "the node takes %d volumes", x.info.MaxVolumes)
}

func (x *exam) checkDeletePublished(ctx context.Context, v *vol) verdict {
	if err := x.retryWhileBusy(ctx, v.remove); err == nil {
		return fail("a volume that is published to a node is deleted")
	}
	// It must be as it was.
	if x.mounts() {
		if err := v.to(ctx, published, none); err != nil {
			return fail("after a deletion that was refused the volume cannot be used: %v", err)
		}
	}
	return pass("a volume that is published to a node is not deleted")
}

func (x *exam) checkPublishedNodes(ctx context.Context) verdict {
	v := x.shared
	for _, want := range []state{attached, created} {
		if err := v.to(ctx, want); err != nil {
			return skipped(err)
		}
		nodes, err := x.nodesOf(ctx, v.id())
		is := len(nodes) == 1 && nodes[0] == x.info.ID
		switch {
		case err != nil:
			return fail("%s", csi.Describe(err))
		case want == attached && !is:
			return fail("it is published to this node, and the driver says: %.200q", nodes)
		case want == created && len(nodes) > 0:
			return fail("it is published to no node, and the driver says: %.200q", nodes)
		}
	}
	return pass("the driver knows where a volume is published")
}

// nodesOf returns the nodes that a volume is published to.
func (x *exam) nodesOf(ctx context.Context, id string) ([]string, error) {
	if x.promises().GetVolume {
		r, err := do(ctx, x, x.control().ControllerGetVolume, &csipb.ControllerGetVolumeRequest{VolumeId: id})
		if err != nil || r.GetStatus() != nil {
			return r.GetStatus().GetPublishedNodeIds(), err
		}
	}
	var nodes []string
	err := x.pages(ctx, 0, func(e *csipb.ListVolumesResponse_Entry) {
		if e.GetVolume().GetVolumeId() == id {
			nodes = e.GetStatus().GetPublishedNodeIds()
		}
	})
	return nodes, err
}

func (x *exam) checkDetach(ctx context.Context, v *vol) verdict {
	if err := v.to(ctx, created); err != nil {
		return fail("%v", err)
	}
	if err := x.retryWhileBusy(ctx, v.detach); err != nil {
		return fail("what is detached cannot be detached again: %s", csi.Describe(err))
	}
	return pass("it is detached, also twice")
}
