package snapshotter

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/contents"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// places limits the calls about snapshots in flight at each driver, half of which one namespace may use, and workers
// the contents reconciled at the same time.
const places, workers = 20, 50

// Declaration is what the snapshotter reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name:   "snapshotter",
		Inputs: kube.Read(volume.GroupSnapshot, volume.ResourceSnapshotContents, volume.ResourceSnapshotClasses),
		Outputs: []kube.Access{
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents, "patch").
				Only("spec.nodeAffinity", kube.Annotation(volume.AnnSnapshotCreating),
					kube.Annotation(volume.AnnSnapshotParameters), kube.Annotation(volume.AnnSnapshotTopologies),
					kube.Annotation(volume.AnnSnapshotName)).
				Shared("with the intent to take a snapshot, if it was removed, and away when the driver keeps nothing",
					kube.Finalizer(volume.FinalizerContentBound)),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents+"/status", "patch").
				Shared("of all but members of groups", "status"),
			kube.Write("", "secrets", "get"),
		},
	}
}

// snapshotter calls drivers to create and delete snapshots.
type snapshotter struct {
	contents kube.Writer[*cluster.VolumeSnapshotContent]
	classes  *kube.Cache[*cluster.VolumeSnapshotClass]
	// topology means that contents record where their snapshots can be used.
	topology bool
}

// New returns the snapshotter for the drivers of a set. It must be made before the caches start.
func New(env controller.Env, drivers *csi.Set, o snapshot.Options) *controller.Controller {
	s := &snapshotter{
		contents: env.Caches.WriteContents(env.Client), classes: env.Caches.SnapshotClasses(), topology: o.Topology,
	}
	loop := &contents.Loop[*cluster.VolumeSnapshotContent]{
		Env: env, Drivers: drivers, Kind: s, Decide: &snapshot.Single().ContentKind, Options: o, Writer: s.contents,
		Call: "snapshot",
	}
	s.classes.Watch(func(_, class *cluster.VolumeSnapshotClass) {
		if class != nil {
			loop.EnqueueAll(class.Driver)
		}
	})
	return contents.New(loop, Declaration(), workers, places)
}

// Class returns the class with a name; nil if it does not exist.
func (s *snapshotter) Class(name string) *snapshot.Class {
	class, _ := s.classes.Get(name)
	return snapshot.ClassOf(class)
}

// Can returns the capabilities of a driver: take and delete snapshots, list them, and look for one.
func (s *snapshotter) Can(d *csi.Driver) (takes, lists, gets bool) {
	return d.Controller.Snapshot, d.Controller.ListSnapshots, d.Controller.GetSnapshot
}

// Others returns the names of other contents that refer to a snapshot of a content's driver.
func (s *snapshotter) Others(c *cluster.VolumeSnapshotContent, handle string, _ []string) []string {
	return snapshot.Single().SameAs(c, handle, s.contents.By(cluster.ContentsByHandle, handle))
}

// Take calls CreateSnapshot.
func (s *snapshotter) Take(
	ctx context.Context, d *csi.Driver, c *cluster.VolumeSnapshotContent, p snapshot.DriverPlan,
	secret map[string]string,
) snapshot.DriverPlan {
	r := &csipb.CreateSnapshotRequest{
		Name: p.Request.Name, SourceVolumeId: p.Request.Sources[0], Parameters: p.Request.Parameters, Secrets: secret,
	}
	if places := csi.Topologies(p.Request.Places); len(places) > 0 {
		r.AccessibilityRequirements = &csipb.TopologyRequirement{Requisite: places, Preferred: places}
	}
	got, err := d.ControllerClient().CreateSnapshot(ctx, r)
	a := s.answer(got.GetSnapshot(), err)
	if others := s.Others(c, a.Taken.Handle, nil); len(others) > 0 {
		a.TakenBy = others[0]
	}
	return snapshot.AfterTake(contents.Facts(c), p, a)
}

// Find queries a driver about a snapshot that another program has taken.
func (s *snapshotter) Find(
	ctx context.Context, d *csi.Driver, c *cluster.VolumeSnapshotContent, p snapshot.DriverPlan,
	secret map[string]string,
) snapshot.DriverPlan {
	var found *csipb.Snapshot
	var err error
	if p.Step == snapshot.Get {
		var got *csipb.GetSnapshotResponse
		got, err = d.ControllerClient().GetSnapshot(ctx,
			&csipb.GetSnapshotRequest{SnapshotId: p.Request.Handle, Secrets: secret})
		if found = got.GetSnapshot(); csi.Code(err) == codes.NotFound {
			err = nil
		}
	} else {
		var got *csipb.ListSnapshotsResponse
		got, err = d.ControllerClient().ListSnapshots(ctx,
			&csipb.ListSnapshotsRequest{SnapshotId: p.Request.Handle, Secrets: secret})
		if entries := got.GetEntries(); len(entries) > 0 {
			found = entries[0].GetSnapshot()
		}
	}
	return snapshot.AfterLook(contents.Facts(c), p, s.answer(found, err))
}

// Delete calls a driver to delete a snapshot.
func (s *snapshotter) Delete(
	ctx context.Context, d *csi.Driver, p snapshot.DriverPlan, secret map[string]string,
) volume.Answer {
	_, err := d.ControllerClient().DeleteSnapshot(ctx,
		&csipb.DeleteSnapshotRequest{SnapshotId: p.Request.Handle, Secrets: secret})
	return csi.AnswerOf(err)
}

// answer returns the end of a call as the facts that decisions judge.
func (s *snapshotter) answer(got *csipb.Snapshot, err error) snapshot.Answer {
	a := snapshot.Answer{Answer: csi.AnswerOf(err)}
	if err == nil && got != nil {
		a.Taken = contents.Taken(got)
	}
	if !s.topology {
		a.Taken.Places = nil
	}
	return a
}
