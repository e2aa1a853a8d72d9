package groupsnapshotter

import (
	"context"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/contents"
	"volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Kinds of keys.
const (
	kindGroup   = "group"
	kindContent = "groupcontent"
	kindMember  = "member"
)

// maxSteps is more than the steps that a group with a hundred members can need in one reconcile. A key that needs more
// is queued again.
const maxSteps = 500

// BindingDeclaration is what the group-snapshot-controller reads and writes.
func BindingDeclaration() controller.Declaration {
	const (
		kept = "from the beginning of a content that this program makes, and on one that another program has made"
		made = "of members of groups"
		says = "of members of groups, about which no driver is asked alone"
	)
	return controller.Declaration{
		Name: "group-snapshot-controller",
		Inputs: append(append(kube.Read("", "persistentvolumeclaims", "persistentvolumes"),
			kube.Read(volume.GroupSnapshot, volume.ResourceSnapshots, volume.ResourceSnapshotContents)...),
			kube.Read(volume.GroupGroupSnapshot, volume.ResourceGroups, volume.ResourceGroupContents,
				volume.ResourceGroupClasses)...),
		Outputs: []kube.Access{
			kube.Write(volume.GroupGroupSnapshot, volume.ResourceGroups, "get", "patch").
				Only("spec.volumeGroupSnapshotClassName", kube.Finalizer(volume.FinalizerGroupBound)),
			kube.Write(volume.GroupGroupSnapshot, volume.ResourceGroups+"/status", "patch").Only("status"),
			kube.Write(volume.GroupGroupSnapshot, volume.ResourceGroupContents, "get", "create", "patch", "delete").
				Only("spec.volumeGroupSnapshotRef", "spec.volumeGroupSnapshotClassName", kube.Annotation(volume.AnnGroupDeleting)).
				Shared(kept, kube.Finalizer(volume.FinalizerGroupContentBound)),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshots, "get", "create", "patch", "delete").
				Only(kube.Finalizer(volume.FinalizerSnapshotInGroup), "metadata.ownerReferences"),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents, "get", "create", "patch").
				Only(kube.Annotation(volume.AnnGroupSnapshotHandle)).Shared(made, "creation", "spec.volumeSnapshotRef"),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents+"/status", "patch").Shared(says, "status"),
		},
	}
}

type decision = contents.Decision[*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotContent,
	groupsnapshot.MemberPlan]

type binding struct {
	contents.Binding[*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotContent, groupsnapshot.MemberPlan]
	snapshots kube.Writer[*snapshotv1.VolumeSnapshot]
	members   kube.Writer[*cluster.VolumeSnapshotContent]
	// view finds the facts in the caches.
	view cluster.View
}

// NewBinding returns the group-snapshot-controller. It must be made before the caches start.
func NewBinding(env controller.Env) *controller.Controller {
	c := &binding{snapshots: env.Caches.WriteSnapshots(env.Client), members: env.Caches.WriteContents(env.Client)}
	c.Env, c.Kind, c.WriteOther = env, groupsnapshot.Groups(), c.writeMember
	c.Controller = &controller.Controller{
		Declaration: BindingDeclaration(), Workers: 5, Pace: env.Pace, Log: env.Log,
	}
	c.Snapshots, c.Contents = env.Caches.WriteGroups(env.Client), env.Caches.WriteGroupContents(env.Client)
	c.view = cluster.View{
		Groups: c.Snapshots, GroupContents: c.Contents, GroupClasses: env.Caches.GroupClasses(), Snapshots: c.snapshots,
		SnapshotContents: c.members, Claims: env.Caches.Claims(), Volumes: env.Caches.Volumes(),
	}
	c.Controller.Reconcile = c.reconcile
	c.watch()
	return c.Controller
}

func (c *binding) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	next := map[string]contents.Step{
		kindGroup: c.stepGroup, kindContent: c.StepContent, kindMember: c.stepMember,
	}[key.Kind]
	return contents.Steps(ctx, key, maxSteps, next)
}

// stepGroup does the next step for a group.
func (c *binding) stepGroup(ctx context.Context, key controller.Key, absent bool) (done bool, err error) {
	g, ok := c.Snapshots.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return true, nil
	}
	f := groupsnapshot.FactsOf(c.view, g, metav1.Now())
	f.Absent = absent && f.Content == nil
	plan := groupsnapshot.Group(f)
	return c.Do(ctx, decision{
		Snapshot: g, Content: f.Content, ContentName: groupsnapshot.ContentName(g), Plan: plan,
		Refused: func(problem string) (groupsnapshot.Plan, bool) { return groupsnapshot.Refused(f, plan, problem) },
	})
}

// writeMember does the step of a plan about a member of a group.
func (c *binding) writeMember(ctx context.Context, p groupsnapshot.MemberPlan) (err error) {
	switch p.Step {
	case groupsnapshot.CreateSnapshot:
		_, _, err = c.snapshots.Ensure(ctx, p.Snapshot)
	case groupsnapshot.WriteSnapshot:
		_, err = c.snapshots.Change(ctx, p.OldSnapshot, p.Snapshot)
	case groupsnapshot.DeleteSnapshot:
		err = c.snapshots.Delete(ctx, p.Snapshot, metav1.DeleteOptions{})
	case groupsnapshot.CreateContent:
		_, _, err = c.members.Ensure(ctx, p.Content)
	case groupsnapshot.WriteContent:
		_, err = c.members.Change(ctx, p.OldContent, p.Content)
	case groupsnapshot.WriteStatus:
		_, err = c.members.Change(ctx, p.OldContent, p.Content, "status")
	}
	return err
}

// stepMember removes the finalizer of a member that is being deleted when its group is gone.
func (c *binding) stepMember(ctx context.Context, key controller.Key, absent bool) (done bool, err error) {
	s, ok := c.snapshots.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return true, nil
	}
	f := groupsnapshot.MemberFacts{Snapshot: s}
	parent := groupsnapshot.ParentOf(s)
	f.Group, _ = c.Snapshots.Get(key.Namespace + "/" + parent)
	f.Absent = absent && f.Group == nil
	switch plan := groupsnapshot.Membership(f); plan.Step {
	case snapshot.Confirm:
		return false, contents.Look(ctx, c.Snapshots, s.Namespace, parent)
	case snapshot.WriteOther:
		return true, c.writeMember(ctx, plan.Other)
	default:
		c.Record(s, plan)
		return true, nil
	}
}

// watch queues everything that a change can affect: nothing is polled.
func (c *binding) watch() {
	c.Snapshots.Watch(c.groupChanged)
	c.Contents.Watch(c.contentChanged)
	c.snapshots.Watch(c.snapshotChanged)
	c.members.Watch(c.memberChanged)
	c.Caches.GroupClasses().Watch(func(_, _ *groupv1.VolumeGroupSnapshotClass) {
		c.enqueueUntaken(c.Snapshots.List())
	})
	c.Caches.Claims().Watch(c.claimChanged)
	c.Caches.Volumes().Watch(func(before, after *corev1.PersistentVolume) {
		if ref := controller.Latest(before, after).Spec.ClaimRef; ref != nil {
			c.enqueueUntaken(c.Snapshots.By(cluster.GroupsByNamespace, ref.Namespace))
		}
	})
}

// memberChanged queues the group that a content belongs to, even if only the driver's handle identifies it.
func (c *binding) memberChanged(before, after *cluster.VolumeSnapshotContent) {
	last := controller.Latest(before, after)
	ref := last.Spec.VolumeSnapshotRef
	s, ok := c.snapshots.Get(ref.Namespace + "/" + ref.Name)
	if ok {
		c.enqueueParent(s)
	}
	if !ok || groupsnapshot.ParentOf(s) != "" || last.Status == nil || last.Status.VolumeGroupSnapshotHandle == nil {
		return
	}
	for _, of := range c.Contents.By(cluster.ContentsByDriver, last.Spec.Driver) {
		if groupsnapshot.HandleOf(of) == *last.Status.VolumeGroupSnapshotHandle {
			c.enqueue(of.Spec.VolumeGroupSnapshotRef.Namespace, of.Spec.VolumeGroupSnapshotRef.Name)
		}
	}
}

func (c *binding) enqueue(namespace, name string) {
	c.Add(controller.Key{Kind: kindGroup, Namespace: namespace, Name: name})
}

// enqueueUntaken queues the groups that have no content yet.
func (c *binding) enqueueUntaken(all []*groupv1.VolumeGroupSnapshot) {
	for _, g := range all {
		if g.Status == nil || g.Status.BoundVolumeGroupSnapshotContentName == nil {
			c.enqueue(g.Namespace, g.Name)
		}
	}
}

// enqueueParent queues the group that a snapshot is a member of.
func (c *binding) enqueueParent(s *snapshotv1.VolumeSnapshot) {
	if parent := groupsnapshot.ParentOf(s); parent != "" {
		c.enqueue(s.Namespace, parent)
	}
}

func (c *binding) groupChanged(before, after *groupv1.VolumeGroupSnapshot) {
	last := controller.Latest(before, after)
	if after != nil && after.DeletionTimestamp == nil {
		c.enqueue(after.Namespace, after.Name)
		return
	}
	if after != nil {
		c.enqueue(after.Namespace, after.Name)
	} else {
		// Its content may be waiting for that.
		c.Add(controller.Key{Kind: kindContent, Name: groupsnapshot.ContentName(last)})
	}
	// A member that is being deleted may go now.
	for _, s := range c.snapshots.By(cluster.SnapshotsByGroup, cluster.Key(last)) {
		c.enqueueMember(s)
	}
}

// enqueueMember queues a snapshot that is being deleted and held by its group.
func (c *binding) enqueueMember(s *snapshotv1.VolumeSnapshot) {
	if s.DeletionTimestamp != nil && slices.Contains(s.Finalizers, volume.FinalizerSnapshotInGroup) {
		c.Add(controller.Key{Kind: kindMember, Namespace: s.Namespace, Name: s.Name})
	}
}

func (c *binding) contentChanged(before, after *groupv1.VolumeGroupSnapshotContent) {
	last := controller.Latest(before, after)
	if after != nil {
		c.Add(controller.Key{Kind: kindContent, Name: after.Name})
	}
	ref := last.Spec.VolumeGroupSnapshotRef
	c.enqueue(ref.Namespace, ref.Name)
	for _, g := range c.Snapshots.By(cluster.GroupsByContent, last.Name) {
		c.enqueue(g.Namespace, g.Name)
	}
}

func (c *binding) snapshotChanged(before, after *snapshotv1.VolumeSnapshot) {
	c.enqueueParent(controller.Latest(before, after))
	if after != nil {
		c.enqueueMember(after)
	}
}

func (c *binding) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	last := controller.Latest(before, after)
	c.enqueueUntaken(c.Snapshots.By(cluster.GroupsByNamespace, last.Namespace))
	from := cluster.SourceOf(last)
	if !from.IsSnapshot() || after != nil && after.Spec.VolumeName == "" {
		return
	}
	// The finalizer belongs to the group of the source snapshot, which does not hold this one.
	if s, ok := c.snapshots.Get(from.Key()); ok {
		c.enqueueParent(s)
	}
}
