package kube

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Caches is the one set of caches of a process. The methods that return a
// cache must all be called before Start, from one goroutine.
type Caches struct {
	// mine are informers of one node, leased those of the nodes' Leases.
	all, mine, leased informers.SharedInformerFactory
	node              string

	pods        *Cache[*corev1.Pod]
	claims      *Cache[*corev1.PersistentVolumeClaim]
	volumes     *Cache[*corev1.PersistentVolume]
	nodes       *Cache[*corev1.Node]
	classes     *Cache[*storagev1.StorageClass]
	attachments *Cache[*storagev1.VolumeAttachment]
	csiNodes    *Cache[*storagev1.CSINode]
	csiDrivers  *Cache[*storagev1.CSIDriver]
	capacities  *Cache[*storagev1.CSIStorageCapacity]
	leases      *Cache[*coordinationv1.Lease]
}

// NewCaches returns caches of the whole cluster.
func NewCaches(client kubernetes.Interface) *Caches { return newCaches(client, "") }

// NewNodeCaches returns caches for the agent of one node: only that Node and
// its Pods; everything else as in NewCaches.
func NewNodeCaches(client kubernetes.Interface, node string) *Caches { return newCaches(client, node) }

func newCaches(client kubernetes.Interface, node string) *Caches {
	trim := informers.WithTransform(trimObject)
	c := &Caches{node: node, all: informers.NewSharedInformerFactoryWithOptions(client, 0, trim)}
	c.mine = c.all
	c.leased = informers.NewSharedInformerFactoryWithOptions(client, 0, trim, informers.WithNamespace(corev1.NamespaceNodeLease))
	return c.withNode(client, trim)
}

func (c *Caches) withNode(client kubernetes.Interface, trim informers.SharedInformerOption) *Caches {
	if c.node == "" {
		return c
	}
	c.mine = informers.NewSharedInformerFactoryWithOptions(client, 0, trim, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = "spec.nodeName=" + c.node
	}))
	c.nodes = newCache[*corev1.Node](informers.NewSharedInformerFactoryWithOptions(client, 0, trim, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = "metadata.name=" + c.node
	})).Core().V1().Nodes().Informer(), nil)
	return c
}

// Pods returns the cache of Pods.
func (c *Caches) Pods() *Cache[*corev1.Pod] {
	indexers := podIndexers
	if c.node != "" {
		indexers = nodePodIndexers
	}
	return lazy(&c.pods, c.mine.Core().V1().Pods().Informer, indexers)
}

// Claims returns the cache of PersistentVolumeClaims.
func (c *Caches) Claims() *Cache[*corev1.PersistentVolumeClaim] {
	return lazy(&c.claims, c.all.Core().V1().PersistentVolumeClaims().Informer, claimIndexers)
}

// Volumes returns the cache of PersistentVolumes.
func (c *Caches) Volumes() *Cache[*corev1.PersistentVolume] {
	return lazy(&c.volumes, c.all.Core().V1().PersistentVolumes().Informer, volumeIndexers)
}

// Nodes returns the cache of Nodes.
func (c *Caches) Nodes() *Cache[*corev1.Node] {
	return lazy(&c.nodes, c.all.Core().V1().Nodes().Informer, nil)
}

// Classes returns the cache of StorageClasses.
func (c *Caches) Classes() *Cache[*storagev1.StorageClass] {
	return lazy(&c.classes, c.all.Storage().V1().StorageClasses().Informer, nil)
}

// Attachments returns the cache of VolumeAttachments.
func (c *Caches) Attachments() *Cache[*storagev1.VolumeAttachment] {
	return lazy(&c.attachments, c.all.Storage().V1().VolumeAttachments().Informer, attachmentIndexers)
}

// CSINodes returns the cache of CSINodes.
func (c *Caches) CSINodes() *Cache[*storagev1.CSINode] {
	return lazy(&c.csiNodes, c.all.Storage().V1().CSINodes().Informer, nil)
}

// CSIDrivers returns the cache of CSIDrivers.
func (c *Caches) CSIDrivers() *Cache[*storagev1.CSIDriver] {
	return lazy(&c.csiDrivers, c.all.Storage().V1().CSIDrivers().Informer, nil)
}

// Capacities returns the cache of CSIStorageCapacities.
func (c *Caches) Capacities() *Cache[*storagev1.CSIStorageCapacity] {
	return lazy(&c.capacities, c.all.Storage().V1().CSIStorageCapacities().Informer, capacityIndexers)
}

// NodeLeases returns the cache of the Leases by which nodes say that they live.
func (c *Caches) NodeLeases() *Cache[*coordinationv1.Lease] {
	return lazy(&c.leases, c.leased.Coordination().V1().Leases().Informer, nil)
}

func lazy[T Object](field **Cache[T], informer func() cache.SharedIndexInformer, indexers func() cache.Indexers) *Cache[T] {
	if *field == nil {
		var extra cache.Indexers
		if indexers != nil {
			extra = indexers()
		}
		*field = newCache[T](informer(), extra)
	}
	return *field
}

// Start fills the caches that were asked for and returns when they hold the
// cluster's objects. They follow the cluster until ctx ends.
func (c *Caches) Start(ctx context.Context) error {
	var synced []cache.InformerSynced
	if c.nodes != nil && c.node != "" {
		go c.nodes.informer.RunWithContext(ctx)
		synced = append(synced, c.nodes.informer.HasSynced)
	}
	for _, f := range []informers.SharedInformerFactory{c.all, c.mine, c.leased} {
		f.Start(ctx.Done())
		for kind, ok := range f.WaitForCacheSync(ctx.Done()) {
			if !ok {
				return fmt.Errorf("read all %v: %w", kind, context.Cause(ctx))
			}
		}
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("read own node: %w", context.Cause(ctx))
	}
	return nil
}

// trimObject drops what no component reads before an object is cached:
// managedFields everywhere, containers and most of the status of Pods, images
// of Nodes. An object of these kinds is therefore patched, never updated
// whole.
func trimObject(o any) (any, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return o, nil
	}
	m.SetManagedFields(nil)
	switch t := o.(type) {
	case *corev1.Pod:
		t.Spec = corev1.PodSpec{
			Volumes: t.Spec.Volumes, NodeName: t.Spec.NodeName, NodeSelector: t.Spec.NodeSelector,
			Affinity: t.Spec.Affinity, Tolerations: t.Spec.Tolerations, SchedulerName: t.Spec.SchedulerName,
			SecurityContext: t.Spec.SecurityContext, ServiceAccountName: t.Spec.ServiceAccountName,
			SchedulingGates: t.Spec.SchedulingGates, TerminationGracePeriodSeconds: t.Spec.TerminationGracePeriodSeconds,
		}
		t.Status = corev1.PodStatus{Phase: t.Status.Phase, Conditions: t.Status.Conditions, Reason: t.Status.Reason, StartTime: t.Status.StartTime}
	case *corev1.Node:
		t.Status.Images = nil
	}
	return o, nil
}
