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
		"group-snapshot", (*exam).groupsSnapshots, (*exam).checkGroup,
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
	limited, cancel := context.WithTimeout(ctx, x.Limit)
	defer cancel()
	err = repeat(limited, func() (bool, error) {
		answer, err := do(ctx, x, x.groupControl().CreateVolumeGroupSnapshot, r)
		if err != nil {
			return busy(err) && x.stopped() == nil, err
		}
		g = answer.GetGroupSnapshot()
		if id := g.GetGroupSnapshotId(); !slices.Contains(x.groups, id) {
			x.groups = append(x.groups, id)
		}
		if !g.GetReadyToUse() {
			return true, errNotReady
		}
		return false, nil
	})
	return g, err
}

func (x *exam) removeGroup(ctx context.Context, id string, members ...string) error {
	return x.insist(ctx, func(ctx context.Context) error {
		_, err := do(ctx, x, x.groupControl().DeleteVolumeGroupSnapshot,
			&csipb.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members, Secrets: x.Secrets})
		return err
	})
}

func (x *exam) getGroup(ctx context.Context, id string) error {
	_, err := do(ctx, x, x.groupControl().GetVolumeGroupSnapshot,
		&csipb.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, Secrets: x.Secrets})
	return err
}

// checkGroup makes a group of two volumes twice, one of the same name of one of them, and deletes it twice. That an
// answer has each volume once is checked by the client.
func (x *exam) checkGroup(ctx context.Context) verdict {
	v, w := x.volume(), x.volume()
	for _, one := range []*vol{v, w} {
		if err := one.to(ctx, created); err != nil {
			return unable(err)
		}
	}
	if problem := x.groupProblem(ctx, v, w); problem != "" {
		return wrong("%s", problem)
	}
	for _, one := range []*vol{v, w} {
		if err := one.to(ctx, none); err != nil {
			return unable(err)
		}
	}
	return well("the same request gives the same group, with one snapshot of each volume")
}

func (x *exam) groupProblem(ctx context.Context, v, w *vol) string {
	name := x.newName()
	first, err := x.group(ctx, name, v, w)
	if err != nil {
		return failure{"CreateVolumeGroupSnapshot", err}.Error()
	}
	id := first.GetGroupSnapshotId()
	second, err := x.group(ctx, name, v, w)
	if err != nil {
		return "the same request fails the second time: " + csi.Describe(err)
	}
	if !slices.Equal(membersOf(first), membersOf(second)) || id != second.GetGroupSnapshotId() {
		return "the same request makes two groups"
	}
	_, err = x.group(ctx, name, v)
	if problem := answered("CreateVolumeGroupSnapshot of the same name of one volume less", err,
		codes.AlreadyExists); problem != "" {
		return problem
	}
	if err := x.getGroup(ctx, id); err != nil {
		return failure{"GetVolumeGroupSnapshot", err}.Error()
	}
	for range 2 {
		if err := x.removeGroup(ctx, id, membersOf(first)...); err != nil {
			return failure{"DeleteVolumeGroupSnapshot", err}.Error()
		}
	}
	return answered("GetVolumeGroupSnapshot of a group that was deleted", x.getGroup(ctx, id), codes.NotFound)
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
