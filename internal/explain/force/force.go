package force

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/foreign"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// Facts are what is known about a volume that has to be detached from a node.
type Facts struct {
	View     cluster.View
	Warnings state.Warnings
	Volume   *corev1.PersistentVolume
	// Claim is the key of the volume's claim.
	Claim string
}

// Detach explains when a volume is detached by force from a node that is not ready. The
// wait begins when no Pod on the node uses the volume any more; only the process that
// detaches knows when that was.
func (f Facts) Detach(a *storagev1.VolumeAttachment) (chain.Link, bool) {
	n := cluster.Find(f.View.Nodes, a.Spec.NodeName)
	if n == nil || nodelife.Ready(n) || nodelife.OutOfService(n) || a.DeletionTimestamp != nil {
		return chain.Link{}, false
	}
	message := fmt.Sprintf("volume %s is detached from node %s by force %.0f minutes after its last Pod there has gone",
		f.Volume.Name, n.Name, attach.MaxUnmount.Minutes())
	next := volume.Controller("attachdetach")
	if p := f.lastOn(n.Name); p != nil {
		message, next = message+"; "+stays(p, n), volume.Administrator(n.Name)
	} else if csi := f.Volume.Spec.CSI; !attach.InUse(n, volume.UniqueName(csi.Driver, csi.VolumeHandle)) {
		return chain.Link{}, false
	} else if t, ok := f.aloneSince(); ok {
		message += ", by " + chain.Moment(t.Add(attach.MaxUnmount)) + " at the latest"
	}
	message += "; immediately, if the host is off permanently and the Node has the taint " + corev1.TaintNodeOutOfService
	return chain.New("detach/"+n.Name, chain.Waiting, volume.ReasonDetaching, message, next), true
}

// lastOn returns a Pod on a node that keeps the volume; nil when there is none.
func (f Facts) lastOn(node string) *corev1.Pod {
	return cluster.First(f.View.Pods.By(cluster.PodsByClaim, f.Claim), func(p *corev1.Pod) bool {
		return p.Spec.NodeName == node && !cluster.Finished(p)
	})
}

// stays says why a Pod is still on a node that is not ready.
func stays(p *corev1.Pod, n *corev1.Node) string {
	name := "pod " + p.Name
	if p.DeletionTimestamp != nil {
		return fmt.Sprintf("%s is being deleted, and no agent on the node terminates it: "+
			"if the host is off, `kubectl delete pod %s -n %s --force`", name, p.Name, p.Namespace)
	}
	switch at, going := nodelife.EvictedAt(p, n); {
	case going && at.IsZero():
		return name + " is about to be evicted"
	case going:
		return name + " is evicted at " + chain.Moment(at)
	}
	return name + " is not being deleted"
}

// aloneSince returns the latest time at which the last Pod on the node stopped using the
// volume: an event of a Pod elsewhere says that the volume is attached to another node,
// and names no Pod that uses it there.
func (f Facts) aloneSince() (time.Time, bool) {
	for _, p := range f.View.Pods.By(cluster.PodsByClaim, f.Claim) {
		for _, e := range f.Warnings {
			if e.InvolvedObject.UID != p.UID || e.FirstTimestamp.IsZero() {
				continue
			}
			this := foreign.IsMultiAttach(e.Message) && foreign.VolumeIn(e.Message) == f.Volume.Name
			if this && !foreign.NamesPods(e.Message) {
				return e.FirstTimestamp.Time, true
			}
		}
	}
	return time.Time{}, false
}
