package snapshotter

import (
	"cmp"
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/contents"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Calls about snapshots that may be in flight at each driver, of which one namespace may have half, and contents that
// are looked at at once.
const places, workers = 20, 50

// Declaration is what the snapshotter reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name:   "snapshotter",
		Inputs: kube.Read(volume.GroupSnapshot, volume.ResourceSnapshotContents, volume.ResourceSnapshotClasses),
		Outputs: []kube.Access{
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents, "patch").
				Only(kube.Annotation(volume.AnnSnapshotCreating), kube.Annotation(volume.AnnSnapshotParameters),
					kube.Annotation(volume.AnnSnapshotName)).
				Shared("with the intent to take a snapshot, if somebody has removed it, and away when the driver keeps nothing",
					kube.Finalizer(volume.FinalizerContentBound)),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents+"/status", "patch").
				Shared("of all but members of groups", "status"),
			kube.Write("", "secrets", "get"),
		},
	}
}

// snapshotter has drivers take and delete snapshots.
type snapshotter struct {
	options  snapshot.Options
	contents kube.Writer[*snapshotv1.VolumeSnapshotContent]
	classes  *kube.Cache[*snapshotv1.VolumeSnapshotClass]
}

// New returns the snapshotter for the drivers of a set. It must be made before the caches start.
func New(env controller.Env, drivers *csi.Set, o snapshot.Options) *controller.Controller {
	s := &snapshotter{options: o, contents: env.Caches.WriteContents(env.Client), classes: env.Caches.SnapshotClasses()}
	loop := &contents.Loop[*snapshotv1.VolumeSnapshotContent]{Env: env, Drivers: drivers, Kind: s, Writer: s.contents}
	s.classes.Watch(func(_, class *snapshotv1.VolumeSnapshotClass) {
		if class != nil {
			loop.EnqueueAll(class.Driver)
		}
	})
	return contents.New(loop, Declaration(), workers, places)
}

// matters are the fields of a content that decide what its driver is asked for: a change of one is a reason to ask.
type matters struct {
	uid, ref                                             types.UID
	deleted                                              bool
	policy                                               snapshotv1.DeletionPolicy
	class, going, secret, vault, node, lost, ofGroup, of string
}

// About returns what a content is about.
func (s *snapshotter) About(c *snapshotv1.VolumeSnapshotContent) contents.About {
	noted := func(key string) string { return c.Annotations[key] }
	ref := c.Spec.VolumeSnapshotRef
	return contents.About{
		Driver: c.Spec.Driver, Home: cmp.Or(s.options.Node, snapshot.Home(c)), Call: "snapshot",
		Namespace: ref.Namespace, Name: ref.Name,
		Matters: matters{
			uid: c.UID, ref: ref.UID, deleted: c.DeletionTimestamp != nil,
			policy: c.Spec.DeletionPolicy, class: ptr.Deref(c.Spec.VolumeSnapshotClassName, ""),
			going: noted(volume.AnnSnapshotDeleting), secret: noted(volume.AnnSnapshotSecretName),
			vault: noted(volume.AnnSnapshotSecretNamespace), node: noted(volume.AnnProvisionedOn),
			lost:    noted(volume.AnnLostWith),
			ofGroup: noted(volume.AnnGroupSnapshotHandle), of: c.Labels[volume.LabelSnapshotsOf],
		},
	}
}

// Plan decides about a content.
func (s *snapshotter) Plan(
	c *snapshotv1.VolumeSnapshotContent, d *csi.Driver, known snapshot.Known,
) snapshot.DriverPlan {
	f := snapshot.DriverFacts{Content: c, Known: known, Options: s.options, Now: metav1.Now()}
	if name := c.Spec.VolumeSnapshotClassName; name != nil {
		f.Class, _ = s.classes.Get(*name)
	}
	if s.options.NameLength > 0 {
		f.Rivals = snapshot.RivalsOf(s.options, c.Spec.Driver, s.contents.By(cluster.ContentsByDriver, c.Spec.Driver))
	}
	if d != nil && s.options.Has(c) {
		f.Ours, f.Takes = true, d.Controller.Snapshot
		f.Lists, f.Gets = d.Controller.ListSnapshots, d.Controller.GetSnapshot
	}
	if c.DeletionTimestamp != nil {
		f.Others = s.others(c, snapshot.HandleOf(c))
	}
	return snapshot.Driver(f)
}

// others returns the names of other contents that stand for a snapshot of a content's driver.
func (s *snapshotter) others(c *snapshotv1.VolumeSnapshotContent, handle string) []string {
	return snapshot.OthersOf(c, handle, s.contents.By(cluster.ContentsByHandle, handle))
}

// Take asks for a snapshot.
func (s *snapshotter) Take(
	ctx context.Context, d *csi.Driver, c *snapshotv1.VolumeSnapshotContent, p snapshot.DriverPlan,
	secret map[string]string,
) snapshot.DriverPlan {
	got, err := d.ControllerClient().CreateSnapshot(ctx, &csipb.CreateSnapshotRequest{
		Name: p.Request.Name, SourceVolumeId: p.Request.Sources[0], Parameters: p.Request.Parameters, Secrets: secret,
	})
	a := answer(got.GetSnapshot(), err)
	if others := s.others(c, a.Taken.Handle); len(others) > 0 {
		a.TakenBy = others[0]
	}
	return snapshot.AfterTake(about(c), p, a)
}

// about are the facts on which the decision about an answer depends.
func about(c *snapshotv1.VolumeSnapshotContent) snapshot.DriverFacts {
	return snapshot.DriverFacts{Content: c, Now: metav1.Now()}
}

// Find asks a driver about a snapshot that somebody else has taken.
func (s *snapshotter) Find(
	ctx context.Context, d *csi.Driver, c *snapshotv1.VolumeSnapshotContent, p snapshot.DriverPlan,
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
	return snapshot.AfterLook(about(c), p, answer(found, err))
}

// Remove asks a driver to delete a snapshot.
func (s *snapshotter) Remove(
	ctx context.Context, d *csi.Driver, c *snapshotv1.VolumeSnapshotContent, p snapshot.DriverPlan,
	secret map[string]string, missing string,
) (then snapshot.DriverPlan, removed bool) {
	_, err := d.ControllerClient().DeleteSnapshot(ctx,
		&csipb.DeleteSnapshotRequest{SnapshotId: p.Request.Handle, Secrets: secret})
	a := answer(nil, err)
	a.Missing = missing
	return snapshot.AfterRemove(about(c), p, a), err == nil
}

// SecretUnread decides about a call that was not made.
func (s *snapshotter) SecretUnread(c *snapshotv1.VolumeSnapshotContent, a volume.Answer) snapshot.DriverPlan {
	return snapshot.SecretUnread(about(c), a)
}

// answer returns the end of a call as the facts that decisions judge.
func answer(s *csipb.Snapshot, err error) snapshot.Answer {
	a := snapshot.Answer{Answer: csi.AnswerOf(err)}
	if err == nil && s != nil {
		a.Taken = contents.Taken(s)
	}
	return a
}
