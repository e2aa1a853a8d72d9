package placement

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const (
	driver = "d.example"

	bindPod     = "create pods/binding ns/p"
	tellPod     = "patch pods/status ns/p"
	reservePV   = "update persistentvolumes pv"
	selectNode  = "update persistentvolumeclaims ns/c"
	toldOfPlace = "Normal ns/p Scheduled: Successfully assigned ns/p to n1"
)

// bubble is a test of its own whose clock goes on when all rests.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// scene is what placement finds, what comes then, and what it makes of it.
type scene struct {
	name                string
	before, last, after []runtime.Object
	writes, told        []string
}

func (s scene) play(t *testing.T) {
	t.Helper()
	bubble(t, s.name, func(t *testing.T) {
		a := kubetest.NewAPI(t, s.before...)
		_, stop := a.Run(New)
		defer stop()
		if s.last != nil {
			a.Forget()
		}
		a.Put(s.last...)
		<-time.After(time.Minute)
		a.Has(s.after...)
		a.Wrote(s.writes...)
		a.Told(s.told...)
	})
}

// with adds what every world has, unless it is there: a node, with the driver on it,
// and classes.
func with(objects ...runtime.Object) []runtime.Object {
	all := slices.Clone(objects)
	for _, o := range []runtime.Object{
		node("n1"), csiNode("n1"), class("late", driver), class("byhand", volume.NoProvisioner), soon(),
	} {
		if !slices.ContainsFunc(objects, func(is runtime.Object) bool { return same(is, o) }) {
			all = append(all, o)
		}
	}
	return all
}

// same says whether two objects have one name and kind.
func same(a, b runtime.Object) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && cluster.Key(a.(metav1.Object)) == cluster.Key(b.(metav1.Object))
}

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

func class(name, provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

// soon is a class that binds at once.
func soon() *storagev1.StorageClass {
	c := class("soon", driver)
	c.VolumeBindingMode = nil
	return c
}

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": name}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, f := range change {
		f(n)
	}
	return n
}

func unready(n *corev1.Node) { n.Status.Conditions = nil }

func tainted(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: "own", Effect: corev1.TaintEffectNoSchedule}}
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func csiNode(name string) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name}},
	}}
}

// limitedTo is a node's driver with room for so many volumes.
func limitedTo(n int32, name string) *storagev1.CSINode {
	c := csiNode(name)
	c.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{Count: &n}
	return c
}

// pod is one that uses the claim, and to which others have written.
func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "p", UID: "p", Labels: map[string]string{"a": "b"},
		Finalizers: []string{"example.org/foreign"},
	}}
	p.Spec.SchedulerName = corev1.DefaultSchedulerName
	p.Spec.Volumes = uses("c")
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions = []corev1.PodCondition{
		{Type: "example.org/foreign", Status: corev1.ConditionTrue, Message: "theirs"},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// called gives a Pod another name and another claim.
func called(name, claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Name, p.UID, p.Spec.Volumes = name, types.UID(name), uses(claim) }
}

func uses(claims ...string) []corev1.Volume {
	var out []corev1.Volume
	for _, name := range claims {
		out = append(out, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	return out
}

func bare(p *corev1.Pod) { p.Spec.Volumes = nil }

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func is(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func gated(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }

func going(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)} }

// refused is a Pod that is told why it has no node, at the second of the bubble's
// beginning.
func refused(message string) func(*corev1.Pod) {
	reason := corev1.PodReasonUnschedulable
	if strings.Contains(message, "bound") {
		reason = string(volume.ReasonWaitForBind)
	}
	return func(p *corev1.Pod) {
		p.Status.Conditions = append([]corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message,
			LastTransitionTime: metav1.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC),
		}}, p.Status.Conditions...)
	}
}

// claim is one of 1Gi that waits for its first consumer.
func claim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "c", UID: "c", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"foreign": "theirs"},
		Finalizers:  []string{volume.FinalizerClaimProtection}, ResourceVersion: "1",
	}}
	c.Spec.StorageClassName, c.Spec.Resources.Requests = ptr.To("late"), storage("1Gi")
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.Status.Phase = corev1.ClaimPending
	for _, f := range change {
		f(c)
	}
	return c
}

func of(class string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class }
}

func named(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Name, c.UID = name, types.UID(name) }
}

func selected(node string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = node }
}

// bound has a claim have the volume of its name with "pv-" before it.
func bound(c *corev1.PersistentVolumeClaim) {
	c.Spec.VolumeName, c.Status.Phase = "pv-"+c.Name, corev1.ClaimBound
}

func forOnePod(c *corev1.PersistentVolumeClaim) {
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
}

// pv is a volume of 2Gi that is free.
func pv(change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pv", UID: "pv", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"foreign": "theirs"},
		Finalizers: []string{volume.FinalizerVolumeProtection}, ResourceVersion: "1",
	}}
	v.Spec.StorageClassName, v.Spec.Capacity = "byhand", storage("2Gi")
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v.Spec.MountOptions, v.Spec.PersistentVolumeReclaimPolicy = []string{"noatime"}, corev1.PersistentVolumeReclaimRetain
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driver, VolumeHandle: "h", VolumeAttributes: map[string]string{"pool": "p"},
	}
	v.Status.Phase = corev1.VolumeAvailable
	for _, f := range change {
		f(v)
	}
	return v
}

// boundTo has a volume be a claim's.
func boundTo(claim string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Name, v.UID, v.Spec.CSI.VolumeHandle = "pv-"+claim, types.UID("pv-"+claim), "h-"+claim
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: claim, UID: types.UID(claim)}
		v.Status.Phase = corev1.VolumeBound
	}
}

// reserved is what placement writes on a volume that it has chosen for a claim.
func reserved(claim, version string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Annotations[volume.AnnBoundByController] = "yes"
		v.Spec.ClaimRef = &corev1.ObjectReference{
			APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "ns", Name: claim, UID: types.UID(claim),
			ResourceVersion: version,
		}
	}
}
