package placement

import (
	"context"
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/decide/placement"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindPod   = "pod"
	kindClass = "class"
	// kindClaim is for claims that no Pod places.
	kindClaim = "claim"
)

// offerPause is the pause between a failure to reserve a volume and the queueing of the Pods that
// could use it.
const offerPause = time.Second

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "placement",
		Inputs: slices.Concat(kube.Read("", "persistentvolumeclaims", "persistentvolumes", "pods", "nodes"),
			kube.Read("storage.k8s.io", "storageclasses", "csinodes", "csidrivers", "csistoragecapacities",
				"volumeattachments"),
			kube.Read(volume.GroupSnapshot, volume.ResourceSnapshots, volume.ResourceSnapshotContents)),
		Outputs: []kube.Access{
			kube.Write("", "pods/binding", "create").Only("spec.nodeName"),
			kube.Write("", "pods/status", "patch").Only(kube.Condition(corev1.PodScheduled),
				kube.Annotation(volume.AnnNextScheduled), kube.Annotation(volume.AnnCauseScheduled)),
			kube.Write("", "persistentvolumeclaims", "update").Shared("names a node", kube.Annotation(volume.AnnSelectedNode)),
			kube.Write("", "persistentvolumes", "update").Shared(
				"reserves a volume that no claim has, over the version that it has read: the second one decides again",
				"spec.claimRef", kube.Annotation(volume.AnnBoundByController)),
		},
	}
}

type placer struct {
	controller.Env
	*controller.Controller
	*memory
	claims      kube.Writer[*corev1.PersistentVolumeClaim]
	volumes     kube.Writer[*corev1.PersistentVolume]
	pods        kube.Writer[*corev1.Pod]
	nodes       *kube.Cache[*corev1.Node]
	classes     *kube.Cache[*storagev1.StorageClass]
	csiNodes    *kube.Cache[*storagev1.CSINode]
	csiDrivers  *kube.Cache[*storagev1.CSIDriver]
	capacities  *kube.Cache[*storagev1.CSIStorageCapacity]
	attachments *kube.Cache[*storagev1.VolumeAttachment]
	snapshots   *kube.Cache[*snapshotv1.VolumeSnapshot]
	contents    *kube.Cache[*cluster.VolumeSnapshotContent]
	// view finds nodes in these caches.
	view cluster.View
}

// New returns the controller. It must be made before the caches start.
func New(env controller.Env) *controller.Controller {
	p := &placer{
		Env: env, Controller: &controller.Controller{Declaration: Declaration(), Workers: 8, Log: env.Log},
		memory: newMemory(),
		claims: env.Caches.WriteClaims(env.Client), volumes: env.Caches.WriteVolumes(env.Client),
		pods: env.Caches.WritePods(env.Client), nodes: env.Caches.Nodes(),
		classes: env.Caches.Classes(), csiNodes: env.Caches.CSINodes(), csiDrivers: env.Caches.CSIDrivers(),
		capacities: env.Caches.Capacities(), attachments: env.Caches.Attachments(),
		snapshots: env.Caches.Snapshots(), contents: env.Caches.SnapshotContents(),
	}
	p.view = cluster.View{Nodes: p.nodes, CSINodes: p.csiNodes}
	p.Controller.Reconcile = p.reconcile
	p.watch()
	return p.Controller
}

func (p *placer) watch() {
	p.pods.Watch(p.podChanged)
	p.claims.Watch(func(before, after *corev1.PersistentVolumeClaim) {
		p.enqueueUsers(cluster.Key(controller.Latest(before, after)))
		p.enqueueClaim(after)
	})
	p.volumes.Watch(p.volumeChanged)
	p.nodes.Watch(func(before, after *corev1.Node) {
		if before == nil || after == nil || !sameForPlacing(before, after) {
			p.enqueueAll()
		}
		if before == nil {
			for _, pod := range p.pods.By(cluster.PodsByNode, after.Name) {
				p.enqueue(pod)
			}
		}
	})
	p.csiNodes.Watch(func(_, _ *storagev1.CSINode) { p.enqueueAll() })
	p.classes.Watch(func(before, after *storagev1.StorageClass) {
		p.enqueueAll()
		// A Pod whose user has chosen its node may have claims to decide about, too.
		for _, c := range p.claims.By(cluster.UnboundByClass, controller.Latest(before, after).Name) {
			p.enqueueUsers(cluster.Key(c))
			p.enqueueClaim(c)
		}
	})
	p.csiDrivers.Watch(func(_, _ *storagev1.CSIDriver) {
		p.enqueueAll()
		for _, c := range p.claims.List() {
			p.enqueueClaim(c)
		}
	})
	p.capacities.Watch(func(before, after *storagev1.CSIStorageCapacity) {
		if capacity.Roomier(before, after) {
			p.enqueueAll()
		}
	})
	p.attachments.Watch(func(_, after *storagev1.VolumeAttachment) {
		if after == nil {
			p.enqueueAll() // the node may have been at its attach limit
		}
	})
}

// podChanged queues a Pod and, if it does not use its claims any more, the other Pods that do.
func (p *placer) podChanged(before, after *corev1.Pod) {
	if after != nil {
		p.enqueue(after)
		if after.Spec.NodeName != "" || cluster.Finished(after) {
			p.forgetPod(after.UID)
		}
		if !cluster.Finished(after) || before != nil && cluster.Finished(before) {
			return
		}
		before = after
	} else {
		p.forgetPod(before.UID)
	}
	for _, name := range cluster.ClaimNames(before) {
		p.enqueueUsers(before.Namespace + "/" + name)
	}
}

// volumeChanged queues the class of a volume that has become free, and the Pods of the claim for
// which a volume was reserved.
func (p *placer) volumeChanged(before, after *corev1.PersistentVolume) {
	if after == nil {
		p.setVolume(before, true)
		return
	}
	if p.setVolume(after, false) {
		if before == nil || !bind.IsFree(before) {
			p.Add(controller.Key{Kind: kindClass, Name: bind.VolumeClassOf(after)})
		}
		return
	}
	if ref := after.Spec.ClaimRef; ref != nil && (before == nil || before.Spec.ClaimRef == nil) {
		p.enqueueUsers(ref.Namespace + "/" + ref.Name)
	}
}

// reconcileClass queues the Pods with a claim that a free volume of the class fits. This is done
// under a key of the class, so that it happens once for many new volumes.
func (p *placer) reconcileClass(class string) {
	for _, c := range p.claims.By(cluster.UnboundByClass, class) {
		if p.hasFree(c) {
			p.enqueueUsers(cluster.Key(c))
		}
	}
}

// sameForPlacing says whether two versions of a node are the same to this controller: a node's
// status changes with every volume.
func sameForPlacing(a, b *corev1.Node) bool {
	return a.Spec.Unschedulable == b.Spec.Unschedulable && nodelife.Ready(a) == nodelife.Ready(b) &&
		a.Annotations[volume.AnnDriverNotes] == b.Annotations[volume.AnnDriverNotes] &&
		a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		fmt.Sprint(a.Labels, a.Spec.Taints) == fmt.Sprint(b.Labels, b.Spec.Taints)
}

func (p *placer) enqueue(pod *corev1.Pod) {
	p.Add(controller.Key{Kind: kindPod, Namespace: pod.Namespace, Name: pod.Name})
}

// enqueueClaim queues a claim that may be unplaced; nil is ignored.
func (p *placer) enqueueClaim(c *corev1.PersistentVolumeClaim) {
	if c != nil && placement.MayBeUnplaced(c) {
		p.Add(controller.Key{Kind: kindClaim, Namespace: c.Namespace, Name: c.Name})
	}
}

// enqueueUsers queues the Pods that use a claim.
func (p *placer) enqueueUsers(claim string) {
	for _, pod := range p.pods.By(cluster.PodsByClaim, claim) {
		p.enqueue(pod)
	}
}

// enqueueAll queues all Pods and claims for which no node was found.
func (p *placer) enqueueAll() {
	for _, key := range p.unplacedClaims() {
		p.Add(key)
	}
	for _, pod := range p.pods.By(cluster.PodsByNode, "") {
		p.enqueue(pod)
	}
}

// reconcileClaim selects a node for a claim with immediate binding whose volume can be on one of several nodes.
func (p *placer) reconcileClaim(ctx context.Context, key controller.Key) error {
	c, unplaced := p.gatherUnplaced(key)
	p.setUnplaced(key, unplaced)
	if !unplaced {
		return nil
	}
	var nodes []placement.Node
	for _, n := range p.nodes.List() {
		nodes = append(nodes, p.node(n, nil))
	}
	plan := placement.Unplaced(c, nodes)
	for _, selected := range plan.Select {
		_, err := p.claims.Update(ctx, selected)
		return err
	}
	p.Events.Warn(c.Object, plan.Because)
	return nil
}

// gatherUnplaced returns the facts about a claim, and whether it is unplaced.
func (p *placer) gatherUnplaced(key controller.Key) (c placement.Claim, unplaced bool) {
	claim, ok := p.claims.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return c, false
	}
	c = placement.Claim{Name: claim.Name, Object: claim}
	name, _ := bind.ClassOf(claim)
	if c.Class, ok = p.classes.Get(name); !ok {
		return c, false
	}
	p.aboutDriver(&c)
	return c, placement.IsUnplaced(claim, c.Class, c.Driver)
}
