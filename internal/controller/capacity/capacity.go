package capacity

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindDriver = "driver"
	// kindItem is the kind of an item's key, which has the driver's name as its namespace.
	kindItem = "item"
)

const (
	// workers is the number of drivers that are called at the same time.
	workers = 32
	// defaultPoll is the default of Options.Poll, and of upstream's external-provisioner.
	defaultPoll = time.Minute
	// settling is the pause between a change of a volume and the call of its driver, so that many changes cost one call.
	settling = 500 * time.Millisecond
	// firstPause is the pause after the first failure. It doubles up to Options.Poll.
	firstPause = 500 * time.Millisecond
)

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "capacity",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes", "nodes"),
			kube.Read("storage.k8s.io", "storageclasses", "csinodes", "csistoragecapacities")...),
		Outputs: []kube.Access{
			kube.Write("storage.k8s.io", "csistoragecapacities", "get", "create", "update", "delete").
				Only("capacity", "maximumVolumeSize"),
		},
	}
}

// Options are the controller's dependencies in addition to its Env.
type Options struct {
	// Drivers holds the drivers that this process can call.
	Drivers *csi.Set
	// Immediate says whether classes with the binding mode Immediate get objects, too.
	Immediate bool
	// Poll is the interval of the calls for each item; 0 means a minute.
	Poll time.Duration
	// Home is where the objects are.
	Home capacity.Home
	// Count, if set, is called with a function that counts the objects.
	Count func(count func() Count)
}

// Count is how many CSIStorageCapacity objects there are.
type Count struct {
	// Goal is how many there should be, and Current how many of these there are.
	Goal, Current int
	// Obsolete is how many there are that will be deleted.
	Obsolete int
}

type tracker struct {
	controller.Env
	*controller.Controller
	Options
	*memory
	nodes    *kube.Cache[*corev1.Node]
	csiNodes *kube.Cache[*storagev1.CSINode]
	classes  *kube.Cache[*storagev1.StorageClass]
	objects  kube.Writer[*storagev1.CSIStorageCapacity]
}

// New returns the controller. It must be made before the caches start.
func New(env controller.Env, o Options) *controller.Controller {
	o.Poll = cmp.Or(o.Poll, defaultPoll)
	t := &tracker{
		Env: env, Options: o, memory: newMemory(),
		Controller: &controller.Controller{
			Declaration: Declaration(), Workers: workers, RetryMin: min(firstPause, o.Poll), RetryMax: o.Poll,
			Pace: env.Pace, Log: env.Log,
		},
		nodes: env.Caches.Nodes(), csiNodes: env.Caches.CSINodes(), classes: env.Caches.Classes(),
		objects: env.Caches.WriteCapacities(env.Client),
	}
	t.Controller.Reconcile = t.reconcile
	t.watch()
	if o.Count != nil {
		o.Count(t.count)
	}
	return t.Controller
}

// count counts the objects of the drivers that are known.
func (t *tracker) count() Count {
	var out Count
	for _, driver := range t.Drivers.Names() {
		plan := capacity.Driver(t.gather(driver))
		out.Goal, out.Obsolete = out.Goal+len(plan.Items), out.Obsolete+len(plan.Delete)
		objects := t.objects.By(cluster.CapacitiesByDriver, driver)
		for _, i := range plan.Items {
			if capacity.Find(i, objects) != nil {
				out.Current++
			}
		}
	}
	return out
}

func (t *tracker) watch() {
	t.nodes.Watch(func(before, after *corev1.Node) {
		if before != nil && after != nil && maps.Equal(before.Labels, after.Labels) {
			return
		}
		if n, ok := t.csiNodes.Get(controller.Latest(before, after).Name); ok {
			t.enqueueDrivers(n)
		}
	})
	t.csiNodes.Watch(func(before, after *storagev1.CSINode) {
		if before == nil || after == nil || !equality.Semantic.DeepEqual(before.Spec, after.Spec) {
			t.enqueueDrivers(before)
			t.enqueueDrivers(after)
		}
	})
	t.classes.Watch(func(before, after *storagev1.StorageClass) {
		t.enqueueDriver(controller.Latest(before, after).Provisioner)
	})
	t.objects.Watch(t.objectChanged)
	t.Caches.Volumes().Watch(t.volumeChanged)
	t.Caches.Claims().Watch(t.claimChanged)
	t.Drivers.Subscribe(func(name string) {
		t.forget(name) // all items are queried again: the driver's answers may have changed
		t.enqueueDriver(name)
	})
}

// objectChanged queues the driver of an object that was created or deleted or got other labels, and
// the object's item. Other changes are corrected after the item's next call.
func (t *tracker) objectChanged(before, after *storagev1.CSIStorageCapacity) {
	if before != nil && after != nil && maps.Equal(before.Labels, after.Labels) {
		return
	}
	for _, o := range []*storagev1.CSIStorageCapacity{before, after} {
		if o != nil {
			t.enqueueDriver(o.Labels[volume.LabelDriver])
		}
	}
	if before != nil {
		t.Add(itemKey(before.Labels[volume.LabelDriver], capacity.Key(before)))
	}
}

// volumeChanged queues the items of the storage on which a volume was created, deleted or expanded, by any component.
func (t *tracker) volumeChanged(before, after *corev1.PersistentVolume) {
	v := after
	switch {
	case after == nil:
		v = before
	case before != nil && before.Spec.Capacity.Storage().Equal(*after.Spec.Capacity.Storage()):
		return
	}
	if v.Spec.CSI == nil {
		return
	}
	t.enqueueItems(v.Spec.CSI.Driver, bind.VolumeClassOf(v), v.Spec.NodeAffinity)
}

// claimChanged queues the items of a claim's class when the claim's selected node was removed: the
// driver had not enough storage there.
func (t *tracker) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	if before == nil || after == nil || volume.SelectedNode(before.Annotations) == "" ||
		volume.SelectedNode(after.Annotations) != "" {
		return
	}
	name, _ := bind.ClassOf(after)
	if class, ok := t.classes.Get(name); ok {
		t.enqueueItems(class.Provisioner, name, nil)
	}
}

// enqueueItems queues the items of a class whose segments a volume's affinity selects; without an
// affinity it queues all of them.
func (t *tracker) enqueueItems(driver, class string, affinity *corev1.VolumeNodeAffinity) {
	for name, item := range t.itemsOf(driver) {
		if item.Class.Name != class {
			continue
		}
		n := &corev1.Node{}
		n.Labels = item.Segment
		if affinity == nil || topology.Selects(affinity.Required, n) {
			t.AddAfter(itemKey(driver, name), settling)
		}
	}
}

func (t *tracker) enqueueDrivers(n *storagev1.CSINode) {
	if n == nil {
		return
	}
	for _, d := range n.Spec.Drivers {
		t.enqueueDriver(d.Name)
	}
}

func (t *tracker) enqueueDriver(name string) { t.Add(controller.Key{Kind: kindDriver, Name: name}) }

func itemKey(driver, name string) controller.Key {
	return controller.Key{Kind: kindItem, Namespace: driver, Name: name}
}

func (t *tracker) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	if key.Kind == kindDriver {
		return controller.Result{}, t.reconcileDriver(ctx, key.Name)
	}
	return t.reconcileItem(ctx, key)
}

func (t *tracker) gather(driver string) capacity.Facts {
	f := capacity.Facts{
		Driver: driver, Classes: t.classes.List(), Home: t.Home,
		Objects:  t.objects.By(cluster.CapacitiesByDriver, driver),
		Segments: topology.Places(driver, t.nodes.List(), t.csiNodes.List()),
	}
	d, ok := t.Drivers.Get(driver)
	// Claims of a node-local driver that do not wait for a Pod need a node with enough room, too. It is unknown whether a
	// driver is node-local before it can be reached.
	f.Immediate = t.Immediate || !ok || d.Scope.Node != ""
	if !ok {
		return f
	}
	f.Reached, f.Reports = true, d.Controller.GetCapacity
	if d.Place != nil {
		// The objects of other nodes have another label.
		f.Immediate, f.Segments = t.Immediate, []topology.Segment{d.Place}
		return f
	}
	f.Guest = !d.Scope.Has("")
	if own := d.Scope.Node; own != "" {
		all := f.Segments
		f.Segments = nil
		if n, ok := t.csiNodes.Get(own); ok {
			f.Segments = topology.Places(driver, t.nodes.List(), []*storagev1.CSINode{n})
		}
		f.Elsewhere = slices.DeleteFunc(all, func(s topology.Segment) bool {
			return slices.ContainsFunc(f.Segments, func(own topology.Segment) bool { return maps.Equal(s, own) })
		})
	}
	return f
}
