package why

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// facts are the objects around one claim or volume. Absent objects are nil or
// missing from their list.
type facts struct {
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
	// Attachments are those of Volume.
	Attachments []*storagev1.VolumeAttachment
	// Everywhere are the attachments of all volumes.
	Everywhere []*storagev1.VolumeAttachment
	// Pods are those that use the claim, finished ones included.
	Pods []*corev1.Pod
	// Nodes and CSINodes are those of the cluster.
	Nodes    []*corev1.Node
	CSINodes []*storagev1.CSINode
	// Sources are the drivers' volumes that Pods use, by the Pod's key.
	Sources map[string][]source
	// Moves are the moves of volumes that were begun.
	Moves []Move
	// Warnings are the warning events, oldest first.
	Warnings []*corev1.Event
	// Making are the claims for which a driver is asked, unless they are hidden.
	Making       map[types.UID]bool
	MakingHidden bool
	// Begun is what is written down of that.
	Begun []*provision.Intent
	// OnlyPod, when not empty, limits what is told of consumers to this Pod.
	OnlyPod string
}

// finished says whether the Pod counts as gone for its volumes.
func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// users returns the Pods that still use the claim.
func (f facts) users() []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range f.Pods {
		if !finished(p) {
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
func (f facts) registered(driver, node string) bool {
	for _, n := range f.CSINodes {
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
func (f facts) failed(subject string, about metav1.Object, reason volume.Reason, repeats string) (Link, bool) {
	e := f.warning(about, reason)
	if e == nil {
		return Link{}, false
	}
	return link(subject, Problem, reason, e.Message, blame(e.Message, orText(e.Annotations[volume.AnnNext], repeats))), true
}

func (f facts) warning(about metav1.Object, reason volume.Reason) *corev1.Event {
	for i := len(f.Warnings) - 1; i >= 0; i-- {
		e := f.Warnings[i]
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
