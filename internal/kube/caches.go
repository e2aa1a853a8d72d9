package kube

import (
	"context"
	"slices"
	"sync"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/cluster"
)

// Caches is the set of caches of a process. The methods that return a cache must all be called
// before Start, from one goroutine.
type Caches struct {
	client kubernetes.Interface
	node   string
	// namespace limits Pods and Claims; "" for all.
	namespace string
	// whole prepares each object before it is cached; if it is nil, trimmer does.
	whole   cache.TransformFunc
	trimmer *Trimmer
	// newest says that lists are never older than the request.
	newest bool
	// naming is that of byName.
	naming sync.RWMutex
	// capacityNamespace is the namespace of Capacities; "" for all.
	capacityNamespace string
	// created holds the caches that were requested.
	created []anyCache
	// forgone are resources that are not read.
	forgone []string

	pods        *Cache[*corev1.Pod]
	claims      *Cache[*corev1.PersistentVolumeClaim]
	volumes     *Cache[*corev1.PersistentVolume]
	nodes       *Cache[*corev1.Node]
	classes     *Cache[*storagev1.StorageClass]
	attachments *Cache[*storagev1.VolumeAttachment]
	csiNodes    *Cache[*storagev1.CSINode]
	csiDrivers  *Cache[*storagev1.CSIDriver]
	capacities  *Cache[*storagev1.CSIStorageCapacity]
	attributes  *Cache[*storagev1.VolumeAttributesClass]
	leases      *Cache[*coordinationv1.Lease]

	snapshots       *Cache[*snapshotv1.VolumeSnapshot]
	contents        *Cache[*cluster.VolumeSnapshotContent]
	snapshotClasses *Cache[*cluster.VolumeSnapshotClass]
	groups          *Cache[*groupv1.VolumeGroupSnapshot]
	groupContents   *Cache[*groupv1.VolumeGroupSnapshotContent]
	groupClasses    *Cache[*groupv1.VolumeGroupSnapshotClass]
}

// anyCache is a Cache of any type of object.
type anyCache interface {
	start(ctx context.Context)
	wait(ctx context.Context) error
	optionalResource() string
}

// NewCaches returns caches of the whole cluster. With a client of Translated, the cached objects are translated, too.
func NewCaches(client kubernetes.Interface) *Caches { return NewNodeCaches(client, "") }

// NewNodeCaches returns caches for the agent of one node: they hold only that Node and its Pods;
// other kinds are as in NewCaches.
func NewNodeCaches(client kubernetes.Interface, node string) *Caches {
	trimmer, client := trimmerOf(client)
	return &Caches{client: client, node: node, trimmer: trimmer}
}

// NewNamespaceCaches returns caches for serving the claims of one namespace on one node: they hold only the claims of
// that namespace and its Pods on that node, both with all fields. whole is that of the Trimmer of other caches of the
// process, or nil.
func NewNamespaceCaches(
	client kubernetes.Interface, namespace, node string, whole func(any) (any, error),
) *Caches {
	if whole == nil {
		whole = new(Trimmer).Whole
	}
	return &Caches{client: client, node: node, namespace: namespace, whole: whole}
}

// Share makes the caches share objects with others of the process. It must be called before they are started.
func (c *Caches) Share(t *Trimmer) { c.trimmer = t }

// Lendable requests the caches that Borrow borrows, and returns c.
func (c *Caches) Lendable() *Caches {
	c.Claims()
	c.Volumes()
	c.CSIDrivers()
	return c
}

// Borrow takes the caches of claims, volumes and CSIDrivers from other caches, which are Lendable, are filled from the
// same API server, and may have been started. They must not end before c.
func (c *Caches) Borrow(from *Caches) {
	c.claims, c.volumes, c.csiDrivers = from.claims.lend(), from.volumes.lend(), from.csiDrivers.lend()
	c.created = append(c.created, c.claims, c.volumes, c.csiDrivers)
}

// prepare returns the object to cache instead of o.
func (c *Caches) prepare(o any) (any, error) {
	if c.whole != nil {
		return c.whole(o)
	}
	return c.trimmer.trim(o)
}

// Forgo keeps the caches of these resources empty, for a process that may not read them and can work without. It must
// be called before they are requested.
func (c *Caches) Forgo(resources ...string) { c.forgone = resources }

// unless marks a cache whose resource is forgone.
func unless[T Object](c *Caches, resource string, cache *Cache[T]) *Cache[T] {
	cache.forgone = slices.Contains(c.forgone, resource)
	return cache
}

// Pods returns the cache of Pods.
func (c *Caches) Pods() *Cache[*corev1.Pod] {
	if c.node == "" {
		return cacheFor(c, &c.pods, c.client.CoreV1().Pods(c.namespace), "", cluster.PodIndexers)
	}
	return cacheFor(c, &c.pods, c.client.CoreV1().Pods(c.namespace), "spec.nodeName="+c.node, nodePodIndexers)
}

// Claims returns the cache of PersistentVolumeClaims.
func (c *Caches) Claims() *Cache[*corev1.PersistentVolumeClaim] {
	return cacheFor(c, &c.claims, c.client.CoreV1().PersistentVolumeClaims(c.namespace), "", claimIndexers)
}

// Volumes returns the cache of PersistentVolumes.
func (c *Caches) Volumes() *Cache[*corev1.PersistentVolume] {
	return cacheFor(c, &c.volumes, c.client.CoreV1().PersistentVolumes(), "", cluster.VolumeIndexers)
}

// Nodes returns the cache of Nodes.
func (c *Caches) Nodes() *Cache[*corev1.Node] {
	selector := ""
	if c.node != "" {
		selector = "metadata.name=" + c.node
	}
	return unless(c, "nodes", cacheFor(c, &c.nodes, c.client.CoreV1().Nodes(), selector, cluster.NodeIndexers))
}

// Classes returns the cache of StorageClasses.
func (c *Caches) Classes() *Cache[*storagev1.StorageClass] {
	return cacheFor(c, &c.classes, c.client.StorageV1().StorageClasses(), "", nil)
}

// Attachments returns the cache of VolumeAttachments.
func (c *Caches) Attachments() *Cache[*storagev1.VolumeAttachment] {
	attachments := c.client.StorageV1().VolumeAttachments()
	return unless(c, "volumeattachments", cacheFor(c, &c.attachments, attachments, "", cluster.AttachmentIndexers))
}

// CSINodes returns the cache of CSINodes.
func (c *Caches) CSINodes() *Cache[*storagev1.CSINode] {
	return unless(c, "csinodes", cacheFor(c, &c.csiNodes, c.client.StorageV1().CSINodes(), "", nil))
}

// CSIDrivers returns the cache of CSIDrivers.
func (c *Caches) CSIDrivers() *Cache[*storagev1.CSIDriver] {
	return unless(c, "csidrivers", cacheFor(c, &c.csiDrivers, c.client.StorageV1().CSIDrivers(), "", nil))
}

// LimitCapacities limits Capacities to one namespace: a sidecar may have no right to read others. It must be called
// before Capacities.
func (c *Caches) LimitCapacities(namespace string) { c.capacityNamespace = namespace }

// Capacities returns the cache of CSIStorageCapacities.
func (c *Caches) Capacities() *Cache[*storagev1.CSIStorageCapacity] {
	api := c.client.StorageV1().CSIStorageCapacities(c.capacityNamespace)
	return cacheFor(c, &c.capacities, api, "", cluster.CapacityIndexers)
}

// VolumeAttributesClasses returns the cache of VolumeAttributesClasses, which servers before 1.34 do not have.
func (c *Caches) VolumeAttributesClasses() *Cache[*storagev1.VolumeAttributesClass] {
	return optionalFor(c, &c.attributes, c.client.StorageV1().VolumeAttributesClasses(), "volumeattributesclasses", nil)
}

// NodeLeases returns the cache of the nodes' heartbeats: the Leases of the namespace kube-node-lease.
func (c *Caches) NodeLeases() *Cache[*coordinationv1.Lease] {
	return cacheFor(c, &c.leases, c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), "", nil)
}

// listWatcher is the part of a typed client that fills a cache; L is the list type of the kind.
type listWatcher[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// cacheFor returns the cache of a field of Caches and creates it at the first call.
func cacheFor[T Object, L runtime.Object](
	c *Caches, field **Cache[T], api listWatcher[L], selector string, indexers func() cluster.Indexers[T],
) *Cache[T] {
	if *field != nil {
		return *field
	}
	var known cluster.Indexers[T]
	if indexers != nil {
		known = indexers()
	}
	*field = newCache(sourceOf(c, api, selector), known, c.prepare)
	c.created = append(c.created, *field)
	return *field
}

// sourceOf returns what lists and watches the selected objects.
func sourceOf[L runtime.Object](c *Caches, api listWatcher[L], selector string) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.FieldSelector = selector; c.newest {
				o.ResourceVersion, o.ResourceVersionMatch = "", ""
			}
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return api.Watch(ctx, o)
		},
	}, c.client)
}

// Start starts the caches that were requested and returns when they hold the objects of the first list, except those of
// kinds that a server may not have. They follow the cluster until ctx ends.
func (c *Caches) Start(ctx context.Context) error {
	for _, m := range c.created {
		m.start(ctx)
	}
	return c.wait(ctx, func(optional string) bool { return optional == "" })
}

// WaitForOptional returns when the caches of those inputs that a server may not have hold the objects of the first
// list. Where custom resources are not installed, it waits until they are.
func (c *Caches) WaitForOptional(ctx context.Context, inputs []Access) error {
	return c.wait(ctx, func(optional string) bool {
		return slices.ContainsFunc(inputs, func(a Access) bool { return a.Resource == optional })
	})
}

func (c *Caches) wait(ctx context.Context, includes func(optional string) bool) error {
	for _, m := range c.created {
		if !includes(m.optionalResource()) {
			continue
		}
		if err := m.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// indexUID is an index by the object's UID. The other indexes are those of package cluster.
const indexUID = "uid"

// index maps a value to the keys of the objects that have it.
type index map[string]keySet

// keySet is a non-empty set of keys. Most have one key, which needs no map.
type keySet struct {
	first string
	more  map[string]struct{}
}

func (f keySet) keys(yield func(string) bool) {
	if !yield(f.first) {
		return
	}
	for k := range f.more {
		if !yield(k) {
			return
		}
	}
}

func (x index) add(value, key string) {
	f, ok := x[value]
	switch {
	case !ok:
		f.first = key
	case f.first == key:
		return
	case f.more == nil:
		f.more = map[string]struct{}{key: {}}
	default:
		f.more[key] = struct{}{}
	}
	x[value] = f
}

func (x index) remove(value, key string) {
	f := x[value]
	if f.first != key {
		delete(f.more, key)
		return
	}
	for k := range f.more {
		f.first = k
		delete(f.more, k)
		x[value] = f
		return
	}
	delete(x, value)
}

func uidOf[T Object](o T) []string { return []string{string(o.GetUID())} }

// nodePodIndexers returns the indexes of the Pods of a node's caches.
func nodePodIndexers() cluster.Indexers[*corev1.Pod] {
	all := cluster.PodIndexers()
	all[indexUID] = uidOf[*corev1.Pod]
	return all
}

func claimIndexers() cluster.Indexers[*corev1.PersistentVolumeClaim] {
	all := cluster.ClaimIndexers()
	all[indexUID] = uidOf[*corev1.PersistentVolumeClaim]
	return all
}
