package why

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/volume"
)

// Facts are the objects around one claim or volume as they were read. Absent
// objects are nil or missing from their list.
type Facts struct {
	// Namespace and ClaimName name the claim that is asked about; both are
	// empty when a volume that no claim refers to is asked about.
	Namespace, ClaimName string
	Claim                *corev1.PersistentVolumeClaim
	// Volume is the volume that the claim names, or that is asked about.
	Volume *corev1.PersistentVolume
	// Class is the class that the claim names.
	Class *storagev1.StorageClass
	// DefaultClass names the default class; empty when there is none.
	DefaultClass string
	// Driver is the object of the driver concerned.
	Driver *storagev1.CSIDriver
	// Attachments are those of Volume.
	Attachments []storagev1.VolumeAttachment
	// Pods are those that use the claim, finished ones included.
	Pods []corev1.Pod
	// Nodes and CSINodes are those of the cluster.
	Nodes    []corev1.Node
	CSINodes []storagev1.CSINode
	// Warnings are the warning events of the objects above, oldest first.
	Warnings []corev1.Event
	// OnlyPod, when not empty, limits what is told of consumers to this Pod.
	OnlyPod string
}

// State says whether a link of the chain holds.
type State string

// The states of a link.
const (
	// OK means that the link holds.
	OK State = "ok"
	// Waiting means that somebody is expected to act, and may do so by itself.
	Waiting State = "waiting"
	// Problem means that it will not get better without a cause being removed.
	Problem State = "problem"
)

// Link is one step of the chain.
type Link struct {
	// Subject is the object that the link is about, "type/name".
	Subject string
	State   State
	Because volume.Because
}

// Chain is the explanation of one object.
type Chain struct {
	// Subject is what was asked about, "type/name".
	Subject string
	// Links go from the claim to the mount; there is at least one.
	Links []Link
}

// Answer returns the first link that does not hold, or the last link when all
// of them do.
func (c Chain) Answer() Link {
	for _, l := range c.Links {
		if l.State != OK {
			return l
		}
	}
	return c.Links[len(c.Links)-1]
}

// Healthy says whether all links hold.
func (c Chain) Healthy() bool { return c.Answer().State == OK }

// Join returns one chain about subject with the links of all chains.
func Join(subject string, chains ...Chain) Chain {
	joined := Chain{Subject: subject}
	for _, c := range chains {
		joined.Links = append(joined.Links, c.Links...)
	}
	return joined
}

func link(subject string, s State, r volume.Reason, message, next string) Link {
	return Link{Subject: subject, State: s, Because: volume.Because{Reason: r, Message: message, Next: next}}
}

// finished says whether the Pod counts as gone for its volumes.
func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// users returns the Pods that still use the claim.
func (f Facts) users() []*corev1.Pod {
	var out []*corev1.Pod
	for i := range f.Pods {
		if p := &f.Pods[i]; !finished(p) {
			out = append(out, p)
		}
	}
	return out
}

// told returns the Pods that the explanation tells of.
func (f Facts) told() []*corev1.Pod {
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
func (f Facts) registered(driver, node string) bool {
	for i := range f.CSINodes {
		n := &f.CSINodes[i]
		for _, d := range n.Spec.Drivers {
			if d.Name == driver && (node == "" || n.Name == node) {
				return true
			}
		}
	}
	return false
}

// warning returns the newest warning about the object with one of the reasons.
func (f Facts) warning(kind, name string, reasons ...volume.Reason) (string, bool) {
	for i := len(f.Warnings) - 1; i >= 0; i-- {
		e := &f.Warnings[i]
		if e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name {
			continue
		}
		for _, r := range reasons {
			if e.Reason == string(r) {
				return e.Message, true
			}
		}
	}
	return "", false
}

// className returns the class that the claim names and whether it names one.
func className(c *corev1.PersistentVolumeClaim) (string, bool) {
	if name, ok := c.Annotations[volume.AnnBetaStorageClass]; ok {
		return name, true
	}
	if c.Spec.StorageClassName == nil {
		return "", false
	}
	return *c.Spec.StorageClassName, true
}

func (f Facts) driverName() string {
	switch {
	case f.Volume != nil && f.Volume.Spec.CSI != nil:
		return f.Volume.Spec.CSI.Driver
	case f.Class != nil:
		return f.Class.Provisioner
	default:
		return ""
	}
}
