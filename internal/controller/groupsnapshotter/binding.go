package groupsnapshotter

import (
	"context"
	"errors"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/contents"
	"volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Kinds of keys.
const (
	kindGroup   = "group"
	kindContent = "groupcontent"
	kindMember  = "member"
)

// maxSteps is more than the steps that a group with a hundred members can need at once. A key that needs more is looked
// at again.
const maxSteps = 500

// BindingDeclaration is what the group-snapshot-controller reads and writes.
func BindingDeclaration() controller.Declaration {
	const (
		kept = "from the beginning of a content that this program makes, and on one that somebody else has made"
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
				Shared(made, "creation", "spec.volumeSnapshotRef"),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents+"/status", "patch").Shared(says, "status"),
		},
	}
}

type binding struct {
	controller.Env
	*controller.Controller
	groups    kube.Writer[*groupv1.VolumeGroupSnapshot]
	contents  kube.Writer[*groupv1.VolumeGroupSnapshotContent]
	snapshots kube.Writer[*snapshotv1.VolumeSnapshot]
	members   kube.Writer[*snapshotv1.VolumeSnapshotContent]
	// view finds the facts in the caches.
	view cluster.View
}

// NewBinding returns the group-snapshot-controller. It must be made before the caches start.
func NewBinding(env controller.Env) *controller.Controller {
	c := &binding{
		Env: env,
		Controller: &controller.Controller{
			Declaration: BindingDeclaration(), Workers: 5, Pace: env.Pace, Log: env.Log,
		},
		groups: env.Caches.WriteGroups(env.Client), contents: env.Caches.WriteGroupContents(env.Client),
		snapshots: env.Caches.WriteSnapshots(env.Client), members: env.Caches.WriteContents(env.Client),
	}
	c.view = cluster.View{
		Groups: c.groups, GroupContents: c.contents, GroupClasses: env.Caches.GroupClasses(), Snapshots: c.snapshots,
		SnapshotContents: c.members, Claims: env.Caches.Claims(), Volumes: env.Caches.Volumes(),
	}
	c.Controller.Reconcile = c.reconcile
	c.watch()
	return c.Controller
}

func (c *binding) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	next := map[string]contents.Step{
		kindGroup: c.stepGroup, kindContent: c.stepContent, kindMember: c.stepMember,
	}[key.Kind]
	return contents.Steps(ctx, key, maxSteps, next)
}

// stepGroup does the next step for a group.
func (c *binding) stepGroup(ctx context.Context, key controller.Key, absent bool) (done bool, err error) {
	g, ok := c.groups.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return true, nil
	}
	f := groupsnapshot.FactsOf(c.view, g, metav1.Now())
	f.Absent = absent && f.Content == nil
	plan := groupsnapshot.Group(f)
	if plan.Step == groupsnapshot.Confirm {
		return false, contents.Look(ctx, c.contents, "", groupsnapshot.ContentName(g))
	}
	err = c.apply(ctx, f, plan)
	if then, refused := refusal(f, plan, err); refused {
		return true, errors.Join(err, c.apply(ctx, f, then))
	}
	return plan.Step == groupsnapshot.Nothing, err
}

// refusal decides about a write that the API server has refused for good; refused is false for any other answer.
func refusal(f groupsnapshot.Facts, p groupsnapshot.Plan, err error) (then groupsnapshot.Plan, refused bool) {
	if !kube.RefusedForGood(err) {
		return then, false
	}
	switch p.Step {
	case groupsnapshot.CreateContent, groupsnapshot.CreateSnapshot, groupsnapshot.CreateMember:
		return groupsnapshot.AfterRefusal(f, p, err.Error()), true
	case groupsnapshot.WriteContent:
		if p.Binds {
			return groupsnapshot.AfterBind(f, err.Error()), true
		}
	}
	return then, false
}

// apply does the step of a plan about a group, and tells of it.
func (c *binding) apply(ctx context.Context, f groupsnapshot.Facts, p groupsnapshot.Plan) (err error) {
	switch p.Step {
	case groupsnapshot.WriteGroup:
		_, err = c.groups.Change(ctx, f.Group, p.Group)
	case groupsnapshot.WriteStatus:
		_, err = c.groups.Change(ctx, f.Group, p.Group, "status")
	case groupsnapshot.CreateContent:
		_, _, err = c.contents.Ensure(ctx, p.Content)
	case groupsnapshot.WriteContent:
		_, err = c.contents.Change(ctx, f.Content, p.Content)
	case groupsnapshot.DeleteContent:
		err = c.contents.Delete(ctx, p.Content, metav1.DeleteOptions{})
	default:
		err = c.applyMember(ctx, p)
	}
	if err == nil {
		c.tell(f.Group, p)
	}
	return err
}

// applyMember does the step of a plan about a member of a group.
func (c *binding) applyMember(ctx context.Context, p groupsnapshot.Plan) (err error) {
	switch p.Step {
	case groupsnapshot.CreateSnapshot:
		_, _, err = c.snapshots.Ensure(ctx, p.Snapshot)
	case groupsnapshot.WriteSnapshot:
		_, err = c.snapshots.Change(ctx, p.Was, p.Snapshot)
	case groupsnapshot.DeleteSnapshot:
		err = c.snapshots.Delete(ctx, p.Snapshot, metav1.DeleteOptions{})
	case groupsnapshot.CreateMember:
		_, _, err = c.members.Ensure(ctx, p.Member)
	case groupsnapshot.WriteMember:
		_, err = c.members.Change(ctx, p.Before, p.Member)
	case groupsnapshot.NoteMember:
		_, err = c.members.Change(ctx, p.Before, p.Member, "status")
	}
	return err
}

// tell records the events of a plan.
func (c *binding) tell(about runtime.Object, p groupsnapshot.Plan) {
	switch {
	case p.Tell && p.Warn:
		c.Events.Warn(about, p.Because)
	case p.Tell:
		c.Events.Note(about, p.Because)
	}
	for _, b := range p.Also {
		c.Events.Note(about, b)
	}
}

// stepContent does the next step for a content that is no matter of its driver.
func (c *binding) stepContent(ctx context.Context, key controller.Key, absent bool) (done bool, err error) {
	content, ok := c.contents.Get(key.Name)
	if !ok {
		return true, nil
	}
	ref := content.Spec.VolumeGroupSnapshotRef
	f := groupsnapshot.ContentFacts{Content: content}
	f.Group, _ = c.groups.Get(ref.Namespace + "/" + ref.Name)
	f.Absent = absent && f.Group == nil
	switch plan := groupsnapshot.Content(f); plan.Step {
	case groupsnapshot.Confirm:
		return false, contents.Look(ctx, c.groups, ref.Namespace, ref.Name)
	case groupsnapshot.WriteContent:
		_, err = c.contents.Change(ctx, content, plan.Content)
		return false, err
	default:
		c.tell(content, plan)
		return true, nil
	}
}

// stepMember takes the finalizer from a member that is being deleted when its group is gone.
func (c *binding) stepMember(ctx context.Context, key controller.Key, absent bool) (done bool, err error) {
	s, ok := c.snapshots.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return true, nil
	}
	f := groupsnapshot.MemberFacts{Snapshot: s}
	parent := groupsnapshot.ParentOf(s)
	f.Group, _ = c.groups.Get(key.Namespace + "/" + parent)
	f.Absent = absent && f.Group == nil
	switch plan := groupsnapshot.Membership(f); plan.Step {
	case groupsnapshot.Confirm:
		return false, contents.Look(ctx, c.groups, s.Namespace, parent)
	case groupsnapshot.WriteSnapshot:
		return true, c.applyMember(ctx, plan)
	default:
		c.tell(s, plan)
		return true, nil
	}
}
