package snapshotter

import (
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// maxSteps is more than the steps that a key can need in one reconcile. A key that needs more is queued again.
const maxSteps = 10

// BindingDeclaration is what the snapshot-controller reads and writes.
func BindingDeclaration() controller.Declaration {
	const creates = "from the beginning of a content that this program makes, and on one that another program has made"
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

type decision = contents.Decision[*snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent,
	*corev1.PersistentVolumeClaim]

type binding struct {
	contents.Binding[*snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent, *corev1.PersistentVolumeClaim]
	classes *kube.Cache[*cluster.VolumeSnapshotClass]
	claims  kube.Writer[*corev1.PersistentVolumeClaim]
	volumes *kube.Cache[*corev1.PersistentVolume]
	// distributed says that each node has a snapshotter of its own.
	distributed bool
	// view finds the facts in these caches.
	view cluster.View
}

// NewBinding returns the snapshot-controller. It must be made before the caches start.
func NewBinding(env controller.Env, distributed bool) *controller.Controller {
	c := &binding{
		distributed: distributed, classes: env.Caches.SnapshotClasses(), claims: env.Caches.WriteClaims(env.Client),
		volumes: env.Caches.Volumes(),
	}
	c.Env, c.Kind = env, snapshot.Single()
	c.Controller = &controller.Controller{
		Declaration: BindingDeclaration(), Workers: 50, Pace: env.Pace, Log: env.Log,
	}
	c.Snapshots, c.Contents = env.Caches.WriteSnapshots(env.Client), env.Caches.WriteContents(env.Client)
	c.WriteOther = func(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
		_, err := c.claims.Update(ctx, claim)
		return err
	}
	c.view = cluster.View{
		SnapshotContents: c.Contents, SnapshotClasses: c.classes, Claims: c.claims, Volumes: c.volumes,
	}
	c.Controller.Reconcile = c.reconcile
	c.watch()
	return c.Controller
}

func (c *binding) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	next := map[string]contents.Step{
		kindSnapshot: c.stepSnapshot, kindContent: c.StepContent, kindClaim: c.stepClaim,
	}[key.Kind]
	return contents.Steps(ctx, key, maxSteps, next)
}

// stepSnapshot does the next step for a snapshot.
func (c *binding) stepSnapshot(ctx context.Context, key controller.Key, absent bool) (done bool, err error) {
	s, ok := c.Snapshots.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return true, nil
	}
	f := snapshot.FactsOf(c.view, s, metav1.Now())
	f.Absent = absent && f.Content == nil
	plan := snapshot.Snapshot(f)
	if plan.Step == snapshot.CreateContent && c.distributed {
		nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, fmt.Errorf("list nodes, of which one takes snapshot %s: %w", s.Name, err)
		}
		plan.Content = snapshot.OnNode(plan.Content, f.Volume, nodes.Items)
	}
	return c.Do(ctx, decision{
		Snapshot: s, Content: f.Content, ContentName: snapshot.ContentName(s), Plan: plan,
		Refused: func(problem string) (snapshot.Plan, bool) { return snapshot.Refused(f, plan, problem) },
	})
}

// stepClaim removes a claim's finalizer when no snapshot of it is being taken any more.
func (c *binding) stepClaim(ctx context.Context, key controller.Key, _ bool) (done bool, err error) {
	claim, ok := c.claims.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return true, nil
	}
	plan := snapshot.Claim(claim, c.Snapshots.By(cluster.SnapshotsByClaim, cluster.Key(claim)))
	if plan.Step == snapshot.WriteOther {
		_, err = c.claims.Update(ctx, plan.Other)
	}
	return true, err
}

// watch queues everything that a change can affect: nothing is polled.
func (c *binding) watch() {
	c.Snapshots.Watch(c.snapshotChanged)
	c.Contents.Watch(c.contentChanged)
	c.claims.Watch(c.claimChanged)
	c.classes.Watch(func(before, after *cluster.VolumeSnapshotClass) {
		for _, name := range []string{controller.Latest(before, after).Name, ""} {
			c.enqueueUnready(c.Snapshots.By(cluster.SnapshotsByClass, name))
		}
	})
	c.volumes.Watch(func(before, after *corev1.PersistentVolume) {
		if ref := controller.Latest(before, after).Spec.ClaimRef; ref != nil {
			c.enqueueUnready(c.Snapshots.By(cluster.SnapshotsByClaim, ref.Namespace+"/"+ref.Name))
		}
	})
}

func (c *binding) enqueue(s *snapshotv1.VolumeSnapshot) {
	c.Add(controller.Key{Kind: kindSnapshot, Namespace: s.Namespace, Name: s.Name})
}

func (c *binding) enqueueUnready(all []*snapshotv1.VolumeSnapshot) {
	for _, s := range all {
		if !snapshot.IsReady(s) {
			c.enqueue(s)
		}
	}
}

func (c *binding) snapshotChanged(before, after *snapshotv1.VolumeSnapshot) {
	last := controller.Latest(before, after)
	if after != nil {
		c.enqueue(after)
	}
	if claim := snapshot.ClaimOf(last); claim != "" && (after == nil || snapshot.IsReady(after)) {
		c.Add(controller.Key{Kind: kindClaim, Namespace: last.Namespace, Name: claim})
	}
	if after == nil {
		// Its content may be waiting for that.
		c.Add(controller.Key{Kind: kindContent, Name: snapshot.ContentName(last)})
	}
}

func (c *binding) contentChanged(before, after *cluster.VolumeSnapshotContent) {
	last := controller.Latest(before, after)
	if after != nil {
		c.Add(controller.Key{Kind: kindContent, Name: after.Name})
	}
	ref := last.Spec.VolumeSnapshotRef
	c.Add(controller.Key{Kind: kindSnapshot, Namespace: ref.Namespace, Name: ref.Name})
	for _, s := range c.Snapshots.By(cluster.SnapshotsByContent, last.Name) {
		c.enqueue(s)
	}
}

func (c *binding) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	last := controller.Latest(before, after)
	c.enqueueUnready(c.Snapshots.By(cluster.SnapshotsByClaim, cluster.Key(last)))
	if after != nil && slices.Contains(after.Finalizers, volume.FinalizerSnapshotSource) {
		c.Add(controller.Key{Kind: kindClaim, Namespace: after.Namespace, Name: after.Name})
	}
	if from := cluster.SourceOf(last); from.IsSnapshot() && (after == nil || after.Spec.VolumeName != "") {
		// The snapshot is not held by it any more.
		c.Add(controller.Key{Kind: kindSnapshot, Namespace: from.Namespace, Name: from.Name})
	}
}
