package groupsnapshotter

import (
	"cmp"
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/contents"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Calls about groups that may be in flight at each driver, and contents that are looked at at once.
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
					kube.Annotation(volume.AnnSnapshotName)).
				Shared("with the intent to take a group, if somebody has removed it, and away when the driver keeps nothing",
					kube.Finalizer(volume.FinalizerGroupContentBound)),
			kube.Write(volume.GroupGroupSnapshot, volume.ResourceGroupContents+"/status", "patch").Only("status"),
			kube.Write("", "secrets", "get"),
		},
	}
}

// snapshotter has drivers take and delete groups of snapshots.
type snapshotter struct {
	options  snapshot.Options
	contents kube.Writer[*groupv1.VolumeGroupSnapshotContent]
	classes  *kube.Cache[*groupv1.VolumeGroupSnapshotClass]
	// snapshots are the contents of single snapshots, of which some may stand for a snapshot in a group.
	snapshots *kube.Cache[*snapshotv1.VolumeSnapshotContent]
}

// New returns the group-snapshotter for the drivers of a set. It must be made before the caches start.
func New(env controller.Env, drivers *csi.Set, o snapshot.Options) *controller.Controller {
	s := &snapshotter{
		options:  o,
		contents: env.Caches.WriteGroupContents(env.Client), classes: env.Caches.GroupClasses(),
		snapshots: env.Caches.SnapshotContents(),
	}
	loop := &contents.Loop[*groupv1.VolumeGroupSnapshotContent]{Env: env, Drivers: drivers, Kind: s, Writer: s.contents}
	s.classes.Watch(func(_, class *groupv1.VolumeGroupSnapshotClass) {
		if class != nil {
			loop.EnqueueAll(class.Driver)
		}
	})
	return contents.New(loop, Declaration(), workers, places)
}

// matters are the fields of a content that decide what its driver is asked for: a change of one is a reason to ask.
type matters struct {
	uid, ref                                    types.UID
	deleted                                     bool
	policy                                      snapshotv1.DeletionPolicy
	class, going, secret, vault, node, lost, of string
}

// About returns what a content is about.
func (s *snapshotter) About(c *groupv1.VolumeGroupSnapshotContent) contents.About {
	ref := c.Spec.VolumeGroupSnapshotRef
	return contents.About{
		Driver: c.Spec.Driver, Home: cmp.Or(s.options.Node, groupsnapshot.Home(c)), Call: "groupsnapshot",
		Namespace: ref.Namespace, Name: ref.Name,
		Matters: matters{
			uid: c.UID, ref: ref.UID, deleted: c.DeletionTimestamp != nil, policy: c.Spec.DeletionPolicy,
			class: ptr.Deref(c.Spec.VolumeGroupSnapshotClassName, ""), going: c.Annotations[volume.AnnGroupDeleting],
			secret: c.Annotations[volume.AnnGroupSecretName], vault: c.Annotations[volume.AnnGroupSecretNamespace],
			node: c.Annotations[volume.AnnProvisionedOn], lost: c.Annotations[volume.AnnLostWith],
			of: c.Labels[volume.LabelSnapshotsOf],
		},
	}
}

// Plan decides about a content.
func (s *snapshotter) Plan(
	c *groupv1.VolumeGroupSnapshotContent, d *csi.Driver, known snapshot.Known,
) groupsnapshot.DriverPlan {
	f := groupsnapshot.DriverFacts{Content: c, Known: known, Options: s.options, Now: metav1.Now()}
	if name := c.Spec.VolumeGroupSnapshotClassName; name != nil {
		f.Class, _ = s.classes.Get(*name)
	}
	if s.options.NameLength > 0 {
		f.Rivals = groupsnapshot.RivalsOf(s.options, c.Spec.Driver, s.contents.By(cluster.ContentsByDriver, c.Spec.Driver))
	}
	if d != nil && s.options.Has(c) {
		f.Ours, f.Takes = true, d.Group.Snapshot
	}
	if c.DeletionTimestamp != nil {
		f.Others = s.others(c, groupsnapshot.HandleOf(c), groupsnapshot.MembersOf(c))
	}
	return groupsnapshot.Driver(f)
}

// others returns the names of other contents that stand for a group of a content's driver, or for a snapshot in it.
func (s *snapshotter) others(c *groupv1.VolumeGroupSnapshotContent, handle string, members []string) []string {
	var snapshots []*snapshotv1.VolumeSnapshotContent
	for _, member := range members {
		snapshots = append(snapshots, s.snapshots.By(cluster.ContentsByHandle, member)...)
	}
	return groupsnapshot.OthersOf(c, handle, members, s.contents.By(cluster.ContentsByDriver, c.Spec.Driver), snapshots)
}

// Take asks for a group of snapshots.
func (s *snapshotter) Take(
	ctx context.Context, d *csi.Driver, c *groupv1.VolumeGroupSnapshotContent, p groupsnapshot.DriverPlan,
	secret map[string]string,
) groupsnapshot.DriverPlan {
	got, err := d.GroupControllerClient().CreateVolumeGroupSnapshot(ctx, &csipb.CreateVolumeGroupSnapshotRequest{
		Name: p.Request.Name, SourceVolumeIds: p.Request.Sources, Parameters: p.Request.Parameters, Secrets: secret,
	})
	a := answer(got.GetGroupSnapshot(), err)
	var members []string
	for _, m := range a.Taken.Members {
		members = append(members, m.Handle)
	}
	if others := s.others(c, a.Taken.Handle, members); len(others) > 0 {
		a.TakenBy = others[0]
	}
	return groupsnapshot.AfterTake(about(c), p, a)
}

// about are the facts on which the decision about an answer depends.
func about(c *groupv1.VolumeGroupSnapshotContent) groupsnapshot.DriverFacts {
	return groupsnapshot.DriverFacts{Content: c, Now: metav1.Now()}
}

// Find asks a driver about a group that somebody else has taken.
func (s *snapshotter) Find(
	ctx context.Context, d *csi.Driver, c *groupv1.VolumeGroupSnapshotContent, p groupsnapshot.DriverPlan,
	secret map[string]string,
) groupsnapshot.DriverPlan {
	got, err := d.GroupControllerClient().GetVolumeGroupSnapshot(ctx, &csipb.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: p.Request.Handle, SnapshotIds: p.Request.Members, Secrets: secret,
	})
	return groupsnapshot.AfterGet(about(c), p, answer(got.GetGroupSnapshot(), err))
}

// Remove asks a driver to delete a group with its snapshots.
func (s *snapshotter) Remove(
	ctx context.Context, d *csi.Driver, c *groupv1.VolumeGroupSnapshotContent, p groupsnapshot.DriverPlan,
	secret map[string]string, missing string,
) (then groupsnapshot.DriverPlan, removed bool) {
	_, err := d.GroupControllerClient().DeleteVolumeGroupSnapshot(ctx, &csipb.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: p.Request.Handle, SnapshotIds: p.Request.Members, Secrets: secret,
	})
	a := answer(nil, err)
	a.Missing = missing
	return groupsnapshot.AfterRemove(about(c), p, a), err == nil
}

// SecretUnread decides about a call that was not made.
func (s *snapshotter) SecretUnread(c *groupv1.VolumeGroupSnapshotContent, a volume.Answer) groupsnapshot.DriverPlan {
	return groupsnapshot.SecretUnread(about(c), a)
}

// answer returns the end of a call as the facts that decisions judge.
func answer(g *csipb.VolumeGroupSnapshot, err error) groupsnapshot.Answer {
	a := groupsnapshot.Answer{Answer: csi.AnswerOf(err)}
	if err != nil || g == nil {
		return a
	}
	a.Taken = groupsnapshot.Taken{
		Handle: g.GetGroupSnapshotId(), Ready: g.GetReadyToUse(), Created: contents.Nanoseconds(g.GetCreationTime()),
	}
	for _, s := range g.GetSnapshots() {
		a.Taken.Members = append(a.Taken.Members, contents.Taken(s))
	}
	return a
}
