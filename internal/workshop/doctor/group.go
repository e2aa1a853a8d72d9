package doctor

import (
	"context"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

func groupChecks() []check {
	return []check{{
		"group-snapshot", (*exam).groupsSnapshots, own((*exam).checkGroup, created),
		"make one group of snapshots of a name, with one snapshot of each volume that is named, all of one moment",
	}}
}

// groupsSnapshots says that the driver takes snapshots of several volumes at one moment.
func (x *exam) groupsSnapshots() bool { return x.creates() && x.controller.d.Group.Snapshot }

func (x *exam) groupControl() csipb.GroupControllerClient {
	return x.controller.d.GroupControllerClient()
}

// group makes a group of snapshots, and waits until it can be used.
func (x *exam) group(ctx context.Context, name string, of ...*vol) (g *csipb.VolumeGroupSnapshot, err error) {
	r := &csipb.CreateVolumeGroupSnapshotRequest{Name: name, Secrets: x.Secrets}
	for _, v := range of {
		r.SourceVolumeIds = append(r.SourceVolumeIds, v.id())
	}
	remove := func(ctx context.Context, id string) error { return x.removeGroup(ctx, id, membersOf(g)...) }
	err = x.ready(ctx, remove, func() (string, bool, error) {
		answer, err := do(ctx, x, x.groupControl().CreateVolumeGroupSnapshot, r)
		g = answer.GetGroupSnapshot()
		return g.GetGroupSnapshotId(), g.GetReadyToUse(), err
	})
	return g, err
}

func (x *exam) removeGroup(ctx context.Context, id string, members ...string) error {
	err := x.retryWhileBusy(ctx, probe(x, x.groupControl().DeleteVolumeGroupSnapshot,
		&csipb.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members, Secrets: x.Secrets}))
	if err != nil {
		return failure{"DeleteVolumeGroupSnapshot", err}
	}
	return nil
}

func (x *exam) getGroup(ctx context.Context, id string) error {
	return probe(x, x.groupControl().GetVolumeGroupSnapshot,
		&csipb.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, Secrets: x.Secrets})(ctx)
}

// checkGroup makes a group of two volumes twice, one of the same name of one of them, and deletes it twice. That an
// answer has each volume once is checked by the client.
func (x *exam) checkGroup(ctx context.Context, v *vol) verdict {
	w := x.volume()
	if err := w.to(ctx, created); err != nil {
		return skipped(err)
	}
	name := x.newName()
	first, err := x.group(ctx, name, v, w)
	if err != nil {
		return fail("%v", failure{"CreateVolumeGroupSnapshot", err})
	}
	id := first.GetGroupSnapshotId()
	second, err := x.group(ctx, name, v, w)
	if err != nil {
		return fail("the same request fails the second time: %s", csi.Describe(err))
	}
	if !slices.Equal(membersOf(first), membersOf(second)) || id != second.GetGroupSnapshotId() {
		return fail("the same request makes two groups")
	}
	_, err = x.group(ctx, name, v)
	if problem := answered("CreateVolumeGroupSnapshot of the same name of one volume less", err,
		codes.AlreadyExists); problem != "" {
		return fail("%s", problem)
	}
	if err := x.getGroup(ctx, id); err != nil {
		return fail("%v", failure{"GetVolumeGroupSnapshot", err})
	}
	for range 2 {
		if err := x.removeGroup(ctx, id, membersOf(first)...); err != nil {
			return fail("%v", err)
		}
	}
	return unless(answered("GetVolumeGroupSnapshot of a group that was deleted", x.getGroup(ctx, id), codes.NotFound),
		"the same request gives the same group, with one snapshot of each volume")
}

// membersOf returns the ids of a group's snapshots, in order.
func membersOf(g *csipb.VolumeGroupSnapshot) []string {
	var ids []string
	for _, s := range g.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	slices.Sort(ids)
	return ids
}
