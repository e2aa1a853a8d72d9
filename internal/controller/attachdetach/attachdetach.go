package attachdetach

import (
	"cmp"
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

// pause is the shortest time between two writes to a node's status while volumes are being attached
// to it, so that one write reports many of them.
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
			kube.Write("", "persistentvolumes", "get"),
			kube.Write("", "nodes", "get"),
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
	volumes     kube.Writer[*corev1.PersistentVolume]
}

// Options are the controller's dependencies in addition to its Env.
type Options struct {
	// Now returns the current time.
	Now func() time.Time
	// Near says whether the attacher of a driver runs in this process; nil means that none does.
	Near func(driver string) bool
	// DisableForceDetachOnTimeout keeps volumes attached to a node that is not ready until the node
	// has unmounted them, however long that takes, unless a user marks the node as out of service.
	DisableForceDetachOnTimeout bool
	// MaxUnmount is how long a node that is not ready may take to unmount a volume that no Pod wants; 0 is
	// attach.MaxUnmount. Tests shorten it.
	MaxUnmount time.Duration
}

// New returns the controller. It must be made before the caches start.
func New(env controller.Env, o Options) *controller.Controller { return build(env, o).Controller }

func build(env controller.Env, o Options) *attachDetach {
	c := &attachDetach{
		Env: env, Options: o, memory: newMemory(cmp.Or(o.MaxUnmount, attach.MaxUnmount)),
		nodes: env.Caches.WriteNodes(env.Client), attachments: env.Caches.WriteAttachments(env.Client),
		volumes:    env.Caches.WriteVolumes(env.Client),
		Controller: &controller.Controller{Declaration: Declaration(), Workers: 32, Log: env.Log},
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
			c.enqueue(controller.Latest(before, after).Name)
			c.enqueueWaiting(before, after)
		}
	})
	c.Caches.Claims().Watch(func(before, after *corev1.PersistentVolumeClaim) {
		if claim := controller.Latest(before, after); claim.Spec.VolumeName != "" {
			c.enqueueUsers(cluster.Key(claim))
		}
	})
	c.Caches.Volumes().Watch(func(before, after *corev1.PersistentVolume) {
		c.enqueueVolume(controller.Latest(before, after))
	})
	c.Caches.Attachments().Watch(c.attachmentChanged)
	c.Caches.CSINodes().Watch(func(before, after *storagev1.CSINode) { c.enqueue(controller.Latest(before, after).Name) })
	c.Caches.CSIDrivers().Watch(func(before, after *storagev1.CSIDriver) {
		if attach.SkipsAttach(before) != attach.SkipsAttach(after) {
			for _, n := range c.view.Nodes.List() {
				c.enqueue(n.Name)
			}
		}
	})
}

func (c *attachDetach) podChanged(before, after *corev1.Pod) {
	if before != nil && after != nil && before.Spec.NodeName == after.Spec.NodeName &&
		cluster.Finished(before) == cluster.Finished(after) && attach.IsKeptOff(before) == attach.IsKeptOff(after) {
		return
	}
	if after == nil {
		c.forgetPod(before.UID)
	}
	c.enqueue(controller.Latest(before, after).Spec.NodeName)
}

// sameForAttaching says whether two versions of a node are the same to this controller: a node's
// status changes often, for other reasons.
func sameForAttaching(a, b *corev1.Node) bool {
	return nodelife.Ready(a) == nodelife.Ready(b) && slices.Equal(a.Status.VolumesInUse, b.Status.VolumesInUse) &&
		slices.Equal(a.Status.VolumesAttached, b.Status.VolumesAttached) &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, func(x, y corev1.Taint) bool { return x.Key == y.Key })
}

func (c *attachDetach) enqueue(node string) {
	if node != "" {
		c.Add(controller.Key{Kind: kindNode, Name: node})
	}
}

// enqueueUsers queues the nodes of the Pods that use a claim.
func (c *attachDetach) enqueueUsers(claim string) {
	for _, p := range c.view.Pods.By(cluster.PodsByClaim, claim) {
		c.enqueue(p.Spec.NodeName)
	}
}

// enqueueVolume queues the nodes of the Pods that use a PersistentVolume.
func (c *attachDetach) enqueueVolume(v *corev1.PersistentVolume) {
	if v != nil && v.Spec.ClaimRef != nil {
		c.enqueueUsers(v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name)
	}
}

// enqueueHandle queues the nodes of the Pods that use a driver's volume, through any of its
// PersistentVolumes.
func (c *attachDetach) enqueueHandle(key string) {
	for _, v := range c.view.Volumes.By(cluster.VolumesByHandle, key) {
		c.enqueueVolume(v)
	}
}

// enqueueWaiting queues the nodes that may be waiting for a volume that another node no longer uses. A node that has
// become not ready no longer counts as using any volume.
func (c *attachDetach) enqueueWaiting(before, after *corev1.Node) {
	if before == nil {
		return
	}
	inUse := map[corev1.UniqueVolumeName]bool{}
	if attach.Trusted(after) || !attach.Trusted(before) && after != nil {
		for _, name := range after.Status.VolumesInUse {
			inUse[name] = true
		}
	}
	for _, name := range before.Status.VolumesInUse {
		if !inUse[name] {
			c.enqueueHandle(strings.TrimPrefix(string(name), "kubernetes.io/csi/"))
		}
	}
}

// attachmentChanged queues the attachment's node and, if the attachment was created or deleted, the
// other nodes whose Pods use the volume.
func (c *attachDetach) attachmentChanged(before, after *storagev1.VolumeAttachment) {
	now := controller.Latest(before, after)
	if after == nil || after.DeletionTimestamp != nil {
		c.forgetAttachment(now.UID)
	}
	v := attach.VolumeOf(c.view, now)
	c.recordAttached(before, after, v) // first, because the reconciliation of the node reads it
	c.enqueue(now.Spec.NodeName)
	if before != nil && after != nil {
		return
	}
	if driver, handle := attach.About(now, v); handle != "" {
		c.enqueueHandle(volume.Key(driver, handle))
	}
	c.enqueueVolume(v)
}

// recordAttached adds a volume to the history when it has been attached.
func (c *attachDetach) recordAttached(before, after *storagev1.VolumeAttachment, v *corev1.PersistentVolume) {
	if after == nil || !after.Status.Attached || before != nil && before.Status.Attached {
		return
	}
	if driver, handle := attach.About(after, v); handle != "" {
		c.history.add(after.Spec.NodeName, volume.UniqueName(driver, handle))
	}
}
