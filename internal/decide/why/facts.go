package why

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// facts are the objects around one claim or volume. Absent objects are nil.
type facts struct {
	known
	// Namespace and ClaimName name the claim that is asked about; both are
	// empty when a volume that no claim is bound to is asked about.
	Namespace, ClaimName string
	Claim                *corev1.PersistentVolumeClaim
	// Volume is the volume that the claim names, or that is asked about.
	Volume *corev1.PersistentVolume
	// Class is the class that the claim names, or else the volume.
	Class *storagev1.StorageClass
	// DefaultClass names the default class; empty when there is none.
	DefaultClass string
	// Driver is the object of the driver concerned.
	Driver *storagev1.CSIDriver
	// OnlyPod, when not empty, limits what is told of consumers to this Pod.
	OnlyPod string
}

// attached returns the attachments of the volume.
func (f facts) attached() []*storagev1.VolumeAttachment {
	if f.Volume == nil {
		return nil
	}
	return f.view.Attachments.By(cluster.AttachmentsByVolume, f.Volume.Name)
}

// users returns the Pods that still use the claim.
func (f facts) users() []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range f.view.Pods.By(cluster.PodsByClaim, f.Namespace+"/"+f.ClaimName) {
		if !cluster.Finished(p) {
			out = append(out, p)
		}
	}
	return out
}

// told returns the Pods that the explanation tells of.
func (f facts) told() []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range f.users() {
		if f.OnlyPod == "" || p.Name == f.OnlyPod {
			out = append(out, p)
		}
	}
	return out
}

// registered says whether the driver is registered on the node, or on any
// node when node is empty.
func (k known) registered(driver, node string) bool {
	for _, n := range k.CSINodes {
		for _, d := range n.Spec.Drivers {
			if d.Name == driver && (node == "" || n.Name == node) {
				return true
			}
		}
	}
	return false
}

// failed returns the link of the newest warning about the object, as it is now
// and not an earlier one of its name, with the reason. Who is next the event
// says, if it is one of ours, or else its text; repeats is who tries again.
func (k known) failed(subject string, about metav1.Object, reason volume.Reason, repeats string) (Link, bool) {
	e := k.warning(about, reason)
	if e == nil {
		return Link{}, false
	}
	return link(subject, Problem, reason, e.Message,
		volume.NextAfter(e.Message, cmp.Or(e.Annotations[volume.AnnNext], repeats))), true
}

func (k known) warning(about metav1.Object, reason volume.Reason) *corev1.Event {
	for i := len(k.Warnings) - 1; i >= 0; i-- {
		e := k.Warnings[i]
		if e.InvolvedObject.UID != about.GetUID() {
			continue
		}
		if e.Reason == string(reason) {
			return e
		}
	}
	return nil
}

func (f facts) driverName() string {
	switch {
	case f.Volume != nil && f.Volume.Spec.CSI != nil:
		return f.Volume.Spec.CSI.Driver
	case f.Class != nil:
		return f.Class.Provisioner
	default:
		return ""
	}
}
