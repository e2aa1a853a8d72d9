package capacity

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/decide/placement"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindDriver = "driver"
	// An item's key has its driver in the place of the namespace.
	kindItem = "item"
)

const (
	// workers is how many drivers are asked at once.
	workers = 32
	// defaultPoll is the pause between questions that no event asks for: that
	// of the provisioner's sidecar.
	defaultPoll = time.Minute
	// settling is how long after a volume came or went its storage is asked
	// about: many volumes at once cost one question.
	settling = 500 * time.Millisecond
	// firstPause is the pause after the first failure; it doubles up to the
	// pause of a driver that answers.
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

// Options say what the controller works with beside its Env.
type Options struct {
	// Drivers are those that the process reaches.
	Drivers *csi.Set
	// Immediate asks for objects of classes whose claims do not wait for a
	// node, too.
	Immediate bool
	// Poll is the pause between questions that no event asks for; 0 is a
	// minute.
	Poll time.Duration
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
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	t := &tracker{
		Env: env, Options: o, memory: newMemory(),
		Controller: &controller.Controller{
			Declaration: Declaration(), Workers: workers, RetryMin: min(firstPause, o.Poll), RetryMax: o.Poll, Log: env.Log,
		},
		nodes: env.Caches.Nodes(), csiNodes: env.Caches.CSINodes(), classes: env.Caches.Classes(),
		objects: env.Caches.WriteCapacities(env.Client),
	}
	t.Controller.Reconcile = t.reconcile
	t.watch()
	return t.Controller
}

func (t *tracker) watch() {
	t.nodes.Watch(func(before, after *corev1.Node) {
		if before != nil && after != nil && maps.Equal(before.Labels, after.Labels) {
			return
		}
		if after == nil {
			after = before
		}
		if n, ok := t.csiNodes.Get(after.Name); ok {
			t.wakeDrivers(n)
		}
	})
	t.csiNodes.Watch(func(before, after *storagev1.CSINode) {
		if before == nil || after == nil || !equality.Semantic.DeepEqual(before.Spec, after.Spec) {
			t.wakeDrivers(before)
			t.wakeDrivers(after)
		}
	})
	t.classes.Watch(func(before, after *storagev1.StorageClass) {
		if after == nil {
			after = before
		}
		t.wakeDriver(after.Provisioner)
	})
	t.objects.Watch(t.objectChanged)
	t.Caches.Volumes().Watch(t.volumeChanged)
	t.Caches.Claims().Watch(t.claimChanged)
	t.Drivers.Subscribe(func(name string) {
		// What it said in an earlier life may be old.
		t.forget(name)
		t.wakeDriver(name)
	})
}

// objectChanged wakes the driver of an object that came, went, or tells of
// something else now. What an object says is made right by the next answer.
func (t *tracker) objectChanged(before, after *storagev1.CSIStorageCapacity) {
	if before != nil && after != nil && maps.Equal(before.Labels, after.Labels) {
		return
	}
	for _, o := range []*storagev1.CSIStorageCapacity{before, after} {
		if o != nil {
			t.wakeDriver(o.Labels[volume.LabelDriver])
		}
	}
	if before != nil {
		t.Add(itemKey(before.Labels[volume.LabelDriver], capacity.Key(before)))
	}
}

// volumeChanged has the storage asked about where a volume came, went or grew,
// whoever had it made.
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
	t.wakeClass(v.Spec.CSI.Driver, bind.VolumeClassOf(v), v.Spec.NodeAffinity)
}

// claimChanged has the storage asked about when a node was taken back from a
// claim: its driver had no room there.
func (t *tracker) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	if before == nil || after == nil || before.Annotations[volume.AnnSelectedNode] == "" ||
		after.Annotations[volume.AnnSelectedNode] != "" {
		return
	}
	name, _ := bind.ClassOf(after)
	if class, ok := t.classes.Get(name); ok {
		t.wakeClass(class.Provisioner, name, nil)
	}
}

// wakeClass has the items of a class asked about that are within reach of a
// volume; without an affinity all are.
func (t *tracker) wakeClass(driver, class string, reach *corev1.VolumeNodeAffinity) {
	for name, item := range t.itemsOf(driver) {
		if item.Class.Name != class {
			continue
		}
		n := &corev1.Node{}
		n.Labels = item.Segment
		if reach == nil || placement.Selects(reach.Required, n) {
			t.AddAfter(itemKey(driver, name), settling)
		}
	}
}

func (t *tracker) wakeDrivers(n *storagev1.CSINode) {
	if n == nil {
		return
	}
	for _, d := range n.Spec.Drivers {
		t.wakeDriver(d.Name)
	}
}

func (t *tracker) wakeDriver(name string) { t.Add(controller.Key{Kind: kindDriver, Name: name}) }

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
		Driver: driver, Immediate: t.Immediate, Classes: t.classes.List(),
		Objects:  t.objects.By(cluster.CapacitiesByDriver, driver),
		Segments: topology.Places(driver, t.nodes.List(), t.csiNodes.List()),
	}
	if d, ok := t.Drivers.Get(driver); ok {
		f.Reached, f.Tells = true, d.Controller.GetCapacity
	}
	return f
}
