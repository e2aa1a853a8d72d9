package attachdetach

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// pause is the time between two writes to a node's status while volumes are on
// their way to it, so that many of them travel in one.
const pause = 50 * time.Millisecond

const (
	kindNode   = "node"
	kindAttach = "attach"
	kindDetach = "detach"
)

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "attachdetach",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes", "pods", "nodes"),
			kube.Read("storage.k8s.io", "volumeattachments", "csidrivers", "csinodes")...),
		Outputs: []kube.Access{
			kube.Write("storage.k8s.io", "volumeattachments", "create", "delete"),
			kube.Write("", "nodes/status", "patch").Only("status.volumesAttached"),
		},
	}
}

type attachDetach struct {
	controller.Env
	*controller.Controller
	*memory
	Options
	view        cluster.View
	nodes       kube.Writer[*corev1.Node]
	attachments kube.Writer[*storagev1.VolumeAttachment]
}

// Options are what the controller depends on beside its Env.
type Options struct {
	// Now tells the time.
	Now func() time.Time
	// Near says whether the attacher of a driver runs in this process and calls
	// the driver; nil is for none.
	Near func(driver string) bool
	// DisableForceDetachOnTimeout has nodes that are not ready waited for
	// however long they take to unmount, unless people say that they are out of
	// service.
	DisableForceDetachOnTimeout bool
}

// New returns the controller. It must be made before the caches start.
func New(env controller.Env, o Options) *controller.Controller { return build(env, o).Controller }

func build(env controller.Env, o Options) *attachDetach {
	c := &attachDetach{
		Env: env, Options: o, memory: newMemory(), nodes: env.Caches.WriteNodes(env.Client),
		attachments: env.Caches.WriteAttachments(env.Client),
		Controller:  &controller.Controller{Declaration: Declaration(), Workers: 32, Log: env.Log},
		view: cluster.View{
			Claims: env.Caches.Claims(), Volumes: env.Caches.Volumes(), Pods: env.Caches.Pods(), Nodes: env.Caches.Nodes(),
			Attachments: env.Caches.Attachments(), Drivers: env.Caches.CSIDrivers(), CSINodes: env.Caches.CSINodes(),
		},
	}
	c.Controller.Reconcile = c.reconcile
	c.watch()
	return c
}

func (c *attachDetach) watch() {
	c.Caches.Pods().Watch(c.podChanged)
	c.Caches.Nodes().Watch(func(before, after *corev1.Node) {
		if before == nil || after == nil || !sameForAttaching(before, after) {
			c.wake(latest(before, after).Name)
			c.wakeAfter(before, after)
		}
	})
	c.Caches.Claims().Watch(func(before, after *corev1.PersistentVolumeClaim) {
		if claim := latest(before, after); claim.Spec.VolumeName != "" {
			c.wakeUsers(cluster.Key(claim))
		}
	})
	c.Caches.Volumes().Watch(func(before, after *corev1.PersistentVolume) { c.wakeVolume(latest(before, after)) })
	c.Caches.Attachments().Watch(c.attachmentChanged)
	c.Caches.CSINodes().Watch(func(before, after *storagev1.CSINode) { c.wake(latest(before, after).Name) })
	c.Caches.CSIDrivers().Watch(func(before, after *storagev1.CSIDriver) {
		if attach.Needless(before) != attach.Needless(after) {
			for _, n := range c.view.Nodes.List() {
				c.wake(n.Name)
			}
		}
	})
}

// latest returns what is known last of an object that may be new or gone.
func latest[T any](before, after *T) *T {
	if after == nil {
		return before
	}
	return after
}

func (c *attachDetach) podChanged(before, after *corev1.Pod) {
	if before != nil && after != nil && before.Spec.NodeName == after.Spec.NodeName &&
		cluster.Finished(before) == cluster.Finished(after) {
		return
	}
	if after == nil {
		c.forgetPod(before.UID)
	}
	c.wake(latest(before, after).Spec.NodeName)
}

// sameForAttaching says that nothing has changed on a node that attaching looks
// at; its status changes for many reasons.
func sameForAttaching(a, b *corev1.Node) bool {
	return nodelife.Ready(a) == nodelife.Ready(b) && slices.Equal(a.Status.VolumesInUse, b.Status.VolumesInUse) &&
		slices.Equal(a.Status.VolumesAttached, b.Status.VolumesAttached) &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, func(x, y corev1.Taint) bool { return x.Key == y.Key })
}

func (c *attachDetach) wake(node string) {
	if node != "" {
		c.Add(controller.Key{Kind: kindNode, Name: node})
	}
}

func (c *attachDetach) wakeUsers(claim string) {
	for _, p := range c.view.Pods.By(cluster.PodsByClaim, claim) {
		c.wake(p.Spec.NodeName)
	}
}

func (c *attachDetach) wakeVolume(v *corev1.PersistentVolume) {
	if v != nil && v.Spec.ClaimRef != nil {
		c.wakeUsers(v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name)
	}
}

// wakeWaiting wakes the nodes whose Pods use a volume, by whatever object.
func (c *attachDetach) wakeWaiting(key string) {
	for _, v := range c.view.Volumes.By(cluster.VolumesByHandle, key) {
		c.wakeVolume(v)
	}
}

// wakeAfter wakes the nodes that have waited for what a node does not use any
// more, or can no longer be believed to.
func (c *attachDetach) wakeAfter(before, after *corev1.Node) {
	if before == nil {
		return
	}
	still := map[corev1.UniqueVolumeName]bool{}
	if attach.Living(after) || !attach.Living(before) && after != nil {
		for _, name := range after.Status.VolumesInUse {
			still[name] = true
		}
	}
	for _, name := range before.Status.VolumesInUse {
		if !still[name] {
			c.wakeWaiting(strings.TrimPrefix(string(name), "kubernetes.io/csi/"))
		}
	}
}

// attachmentChanged wakes the attachment's node and, when it has come or gone,
// the nodes whose Pods use the volume too and may have waited for it.
func (c *attachDetach) attachmentChanged(before, after *storagev1.VolumeAttachment) {
	now := latest(before, after)
	if after == nil || after.DeletionTimestamp != nil {
		c.shown(now.UID)
	}
	v := attach.VolumeOf(c.view, now)
	// It must be noted before the node is looked at.
	c.noteAttached(before, after, v)
	c.wake(now.Spec.NodeName)
	if before != nil && after != nil {
		return
	}
	if driver, handle := attach.About(now, v); handle != "" {
		c.wakeWaiting(volume.Key(driver, handle))
	}
	c.wakeVolume(v)
}

// noteAttached remembers that a node has got a volume.
func (c *attachDetach) noteAttached(before, after *storagev1.VolumeAttachment, v *corev1.PersistentVolume) {
	if after == nil || !after.Status.Attached || before != nil && before.Status.Attached {
		return
	}
	if driver, handle := attach.About(after, v); handle != "" {
		c.had.gets(after.Spec.NodeName, volume.UniqueName(driver, handle))
	}
}
