package snapshotter

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/contents"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Kinds of keys.
const (
	kindSnapshot = "snapshot"
	kindContent  = "content"
	kindClaim    = "claim"
)

// maxSteps is more than the steps that a key can need at once. A key that needs more is looked at again.
const maxSteps = 10

// BindingDeclaration is what the snapshot-controller reads and writes.
func BindingDeclaration() controller.Declaration {
	const creates = "from the beginning of a content that this program makes, and on one that somebody else has made"
	return controller.Declaration{
		Name: "snapshot-controller",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes"), kube.Read(volume.GroupSnapshot,
			volume.ResourceSnapshots, volume.ResourceSnapshotContents, volume.ResourceSnapshotClasses)...),
		Outputs: []kube.Access{
			kube.Write("", "persistentvolumeclaims", "update").Only(kube.Finalizer(volume.FinalizerSnapshotSource)),
			kube.Write("", "nodes", "list"),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshots, "get", "patch").
				Only("spec.volumeSnapshotClassName", kube.Finalizer(volume.FinalizerSnapshotAsSource),
					kube.Finalizer(volume.FinalizerSnapshotBound)),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshots+"/status", "patch").Only("status"),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents, "get", "create", "patch", "delete").
				Only("deletion", "spec.volumeSnapshotClassName", kube.Annotation(volume.AnnSnapshotDeleting)).
				Shared("of all but members of groups", "creation", "spec.volumeSnapshotRef").
				Shared(creates, kube.Finalizer(volume.FinalizerContentBound)),
		},
	}
}

type binding struct {
	controller.Env
	*controller.Controller
	snapshots kube.Writer[*snapshotv1.VolumeSnapshot]
	contents  kube.Writer[*snapshotv1.VolumeSnapshotContent]
	classes   *kube.Cache[*snapshotv1.VolumeSnapshotClass]
	claims    kube.Writer[*corev1.PersistentVolumeClaim]
	volumes   *kube.Cache[*corev1.PersistentVolume]
	// distributed says that each node has a snapshotter of its own.
	distributed bool
	// view finds the facts in these caches.
	view cluster.View
}

// NewBinding returns the snapshot-controller. It must be made before the caches start.
func NewBinding(env controller.Env, distributed bool) *controller.Controller {
	c := &binding{
		Env: env, distributed: distributed,
		Controller: &controller.Controller{
			Declaration: BindingDeclaration(), Workers: 50, Pace: env.Pace, Log: env.Log,
		},
		snapshots: env.Caches.WriteSnapshots(env.Client), contents: env.Caches.WriteContents(env.Client),
		classes: env.Caches.SnapshotClasses(), claims: env.Caches.WriteClaims(env.Client), volumes: env.Caches.Volumes(),
	}
	c.view = cluster.View{
		SnapshotContents: c.contents, SnapshotClasses: c.classes, Claims: c.claims, Volumes: c.volumes,
	}
	c.Controller.Reconcile = c.reconcile
	c.watch()
	return c.Controller
}

func (c *binding) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	next := map[string]contents.Step{
		kindSnapshot: c.stepSnapshot, kindContent: c.stepContent, kindClaim: c.stepClaim,
	}[key.Kind]
	return contents.Steps(ctx, key, maxSteps, next)
}

// stepSnapshot does the next step for a snapshot.
func (c *binding) stepSnapshot(ctx context.Context, key controller.Key, absent bool) (done bool, err error) {
	s, ok := c.snapshots.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return true, nil
	}
	f := snapshot.FactsOf(c.view, s, metav1.Now())
	f.Absent = absent && f.Content == nil
	plan := snapshot.Snapshot(f)
	if plan.Step == snapshot.Confirm {
		return false, contents.Look(ctx, c.contents, "", snapshot.ContentName(s))
	}
	err = c.apply(ctx, f, plan)
	if then, refused := refusal(f, plan, err); refused {
		return true, errors.Join(err, c.apply(ctx, f, then))
	}
	return plan.Step == snapshot.Nothing, err
}

// refusal decides about a write that the API server has refused for good; refused is false for any other answer.
func refusal(f snapshot.Facts, p snapshot.Plan, err error) (then snapshot.Plan, refused bool) {
	if !kube.RefusedForGood(err) {
		return then, false
	}
	switch {
	case p.Step == snapshot.CreateContent:
		return snapshot.AfterCreate(f, err.Error()), true
	case p.Binds:
		return snapshot.AfterBind(f, err.Error()), true
	}
	return then, false
}

// apply does the step of a plan about a snapshot, and tells of it.
func (c *binding) apply(ctx context.Context, f snapshot.Facts, p snapshot.Plan) (err error) {
	switch p.Step {
	case snapshot.WriteSnapshot:
		_, err = c.snapshots.Change(ctx, f.Snapshot, p.Snapshot)
	case snapshot.WriteStatus:
		_, err = c.snapshots.Change(ctx, f.Snapshot, p.Snapshot, "status")
	case snapshot.WriteClaim:
		_, err = c.claims.Update(ctx, p.Claim)
	case snapshot.CreateContent:
		err = c.create(ctx, f, p.Content)
	case snapshot.WriteContent:
		_, err = c.contents.Change(ctx, f.Content, p.Content)
	case snapshot.DeleteContent:
		err = c.contents.Delete(ctx, p.Content, metav1.DeleteOptions{})
	case snapshot.Nothing, snapshot.Confirm:
	}
	if err == nil {
		c.tell(f.Snapshot, p)
	}
	return err
}

// create creates a content. Nodes are asked for only then, and only if each has a snapshotter of its own.
func (c *binding) create(ctx context.Context, f snapshot.Facts, content *snapshotv1.VolumeSnapshotContent) error {
	if c.distributed {
		nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list nodes, of which one takes snapshot %s: %w", f.Snapshot.Name, err)
		}
		content = snapshot.OnNode(content, f.Volume, nodes.Items)
	}
	_, _, err := c.contents.Ensure(ctx, content)
	return err
}

// tell records the events of a plan.
func (c *binding) tell(about runtime.Object, p snapshot.Plan) {
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
	ref := content.Spec.VolumeSnapshotRef
	f := snapshot.ContentFacts{Content: content}
	f.Snapshot, _ = c.snapshots.Get(ref.Namespace + "/" + ref.Name)
	f.Absent = absent && f.Snapshot == nil
	switch plan := snapshot.Content(f); plan.Step {
	case snapshot.Confirm:
		return false, contents.Look(ctx, c.snapshots, ref.Namespace, ref.Name)
	case snapshot.WriteContent:
		_, err = c.contents.Change(ctx, content, plan.Content)
		return false, err
	default:
		c.tell(content, plan)
		return true, nil
	}
}

// stepClaim takes the finalizer from a claim when no snapshot is being taken of it any more.
func (c *binding) stepClaim(ctx context.Context, key controller.Key, _ bool) (done bool, err error) {
	claim, ok := c.claims.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return true, nil
	}
	plan := snapshot.Claim(claim, c.snapshots.By(cluster.SnapshotsByClaim, cluster.Key(claim)))
	if plan.Step == snapshot.WriteClaim {
		_, err = c.claims.Update(ctx, plan.Claim)
	}
	return true, err
}
