package groupsnapshotter

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/contents"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// places limits the calls about groups in flight at each driver, and workers the contents reconciled at the same time.
const places, workers = 10, 5

// Declaration is what the group-snapshotter reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "group-snapshotter",
		Inputs: append(kube.Read(volume.GroupGroupSnapshot, volume.ResourceGroupContents, volume.ResourceGroupClasses),
			kube.Read(volume.GroupSnapshot, volume.ResourceSnapshotContents)...),
		Outputs: []kube.Access{
			kube.Write(volume.GroupGroupSnapshot, volume.ResourceGroupContents, "patch").
				Only(kube.Annotation(volume.AnnGroupCreating), kube.Annotation(volume.AnnSnapshotParameters),
					kube.Annotation(volume.AnnSnapshotName), kube.Annotation(volume.AnnSnapshotPlaces)).
				Shared("with the intent to take a group, if it was removed, and away when the driver keeps nothing",
					kube.Finalizer(volume.FinalizerGroupContentBound)),
			kube.Write(volume.GroupGroupSnapshot, volume.ResourceGroupContents+"/status", "patch").Only("status"),
			kube.Write("", "secrets", "get"),
		},
	}
}

// snapshotter calls drivers to create and delete groups of snapshots.
type snapshotter struct {
	contents kube.Writer[*groupv1.VolumeGroupSnapshotContent]
	classes  *kube.Cache[*groupv1.VolumeGroupSnapshotClass]
	// snapshots are the contents of single snapshots, some of which may refer to a snapshot in a group.
	snapshots *kube.Cache[*cluster.VolumeSnapshotContent]
	// topology means that contents record where the snapshots can be used.
	topology bool
}

// New returns the group-snapshotter for the drivers of a set. It must be made before the caches start.
func New(env controller.Env, drivers *csi.Set, o snapshot.Options) *controller.Controller {
	s := &snapshotter{
		contents: env.Caches.WriteGroupContents(env.Client), classes: env.Caches.GroupClasses(),
		snapshots: env.Caches.SnapshotContents(), topology: o.Topology,
	}
	loop := &contents.Loop[*groupv1.VolumeGroupSnapshotContent]{
		Env: env, Drivers: drivers, Kind: s, Decide: &groupsnapshot.Groups().ContentKind, Options: o, Writer: s.contents,
		Call: "groupsnapshot",
	}
	s.classes.Watch(func(_, class *groupv1.VolumeGroupSnapshotClass) {
		if class != nil {
			loop.EnqueueAll(class.Driver)
		}
	})
	return contents.New(loop, Declaration(), workers, places)
}

// Class returns the class with a name; nil if it does not exist.
func (s *snapshotter) Class(name string) *snapshot.Class {
	class, _ := s.classes.Get(name)
	return groupsnapshot.ClassOf(class)
}

// Can says whether a driver can take, find and delete groups; it cannot list them.
func (s *snapshotter) Can(d *csi.Driver) (takes, lists, gets bool) {
	return d.Group.Snapshot, false, d.Group.Snapshot
}

// Others returns the names of other contents that refer to a group of a content's driver, or to a snapshot in it.
func (s *snapshotter) Others(c *groupv1.VolumeGroupSnapshotContent, handle string, members []string) []string {
	var snapshots []*cluster.VolumeSnapshotContent
	for _, member := range members {
		snapshots = append(snapshots, s.snapshots.By(cluster.ContentsByHandle, member)...)
	}
	return groupsnapshot.OthersOf(c, handle, members, s.contents.By(cluster.ContentsByDriver, c.Spec.Driver), snapshots)
}

// Take calls CreateVolumeGroupSnapshot.
func (s *snapshotter) Take(
	ctx context.Context, d *csi.Driver, c *groupv1.VolumeGroupSnapshotContent, p groupsnapshot.DriverPlan,
	secret map[string]string,
) groupsnapshot.DriverPlan {
	got, err := d.GroupControllerClient().CreateVolumeGroupSnapshot(ctx, &csipb.CreateVolumeGroupSnapshotRequest{
		Name: p.Request.Name, SourceVolumeIds: p.Request.Sources, Parameters: p.Request.Parameters, Secrets: secret,
	})
	a := s.answer(got.GetGroupSnapshot(), err)
	var members []string
	for _, m := range a.Taken.Members {
		members = append(members, m.Handle)
	}
	if others := s.Others(c, a.Taken.Handle, members); len(others) > 0 {
		a.TakenBy = others[0]
	}
	return groupsnapshot.AfterTake(contents.Facts(c), p, a)
}

// Find queries a driver about a group that another program has taken.
func (s *snapshotter) Find(
	ctx context.Context, d *csi.Driver, c *groupv1.VolumeGroupSnapshotContent, p groupsnapshot.DriverPlan,
	secret map[string]string,
) groupsnapshot.DriverPlan {
	got, err := d.GroupControllerClient().GetVolumeGroupSnapshot(ctx, &csipb.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: p.Request.Handle, SnapshotIds: p.Request.Members, Secrets: secret,
	})
	return groupsnapshot.AfterGet(contents.Facts(c), p, s.answer(got.GetGroupSnapshot(), err))
}

// Delete calls a driver to delete a group with its snapshots.
func (s *snapshotter) Delete(
	ctx context.Context, d *csi.Driver, p groupsnapshot.DriverPlan, secret map[string]string,
) volume.Answer {
	_, err := d.GroupControllerClient().DeleteVolumeGroupSnapshot(ctx, &csipb.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: p.Request.Handle, SnapshotIds: p.Request.Members, Secrets: secret,
	})
	return csi.AnswerOf(err)
}

// answer returns the end of a call as the facts that decisions judge.
func (s *snapshotter) answer(g *csipb.VolumeGroupSnapshot, err error) groupsnapshot.Answer {
	a := groupsnapshot.Answer{Answer: csi.AnswerOf(err)}
	if err != nil || g == nil {
		return a
	}
	a.Taken = groupsnapshot.Taken{
		Handle: g.GetGroupSnapshotId(), Ready: g.GetReadyToUse(), Created: contents.Nanoseconds(g.GetCreationTime()),
	}
	for _, m := range g.GetSnapshots() {
		member := contents.Taken(m)
		if !s.topology {
			member.Places = nil
		}
		a.Taken.Members = append(a.Taken.Members, member)
	}
	return a
}
