package why

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/decide/migrate"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/lease"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// facts are the objects around one claim or volume. Absent objects are nil.
type facts struct {
	Walk
	// Namespace and ClaimName name the claim in question; both are empty if the question is
	// about a volume to which no claim is bound.
	Namespace, ClaimName string
	Claim                *corev1.PersistentVolumeClaim
	// Volume is the volume that the claim names, or the volume in question.
	Volume *corev1.PersistentVolume
	// Class is the class that the claim names, or else the volume.
	Class *storagev1.StorageClass
	// Driver is the object of the driver concerned.
	Driver *storagev1.CSIDriver
	// OnlyPod, when not empty, limits the consumers that are explained to this Pod.
	OnlyPod string
}

// attached returns the attachments of the volume.
func (f facts) attached() []*storagev1.VolumeAttachment {
	if f.Volume == nil {
		return nil
	}
	return f.View.Attachments.By(cluster.AttachmentsByVolume, f.Volume.Name)
}

// users returns the Pods that still use the claim.
func (f facts) users() []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range f.View.Pods.By(cluster.PodsByClaim, f.Namespace+"/"+f.ClaimName) {
		if !cluster.Finished(p) {
			out = append(out, p)
		}
	}
	return out
}

// covered returns the Pods that the explanation covers.
func (f facts) covered() []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range f.users() {
		if f.OnlyPod == "" || p.Name == f.OnlyPod {
			out = append(out, p)
		}
	}
	return out
}

// Failed returns the link of the newest warning about the object.
func (w Walk) Failed(
	subject string, about metav1.Object, reason volume.Reason, repeats volume.Actor,
) (chain.Link, bool) {
	c, ok := w.Warnings.Condition(about, reason, repeats)
	return chain.FromCondition(subject, c), ok
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

// source returns the driver of the volume, or of the class that is to have one
// made.
func (f facts) source() driverstatus.Driver {
	if s, ok := drivers.Of(f.Volume); ok {
		return s
	}
	return driverstatus.Driver{CSI: f.driverName()}
}

// provides says whether volumes are created for a provisioner's name: by a driver that is
// registered on a node, or by a provisioner without a CSI driver that has created some or
// holds a lease.
func (w Walk) provides(provisioner string) bool {
	if drivers.Registered(w.View, provisioner, "") {
		return true
	}
	for _, v := range w.Volumes {
		if v.Spec.CSI == nil && v.Annotations[volume.AnnProvisionedBy] == provisioner {
			return true
		}
	}
	return cluster.Find(w.View.Drivers, provisioner) == nil && w.leases.Held(strings.ReplaceAll(provisioner, "/", "-"))
}

// Uncalled returns why no controllers can call a driver for the volumes of a node, if it is node-local; otherwise the
// node does not matter.
func (w Walk) Uncalled(s driverstatus.Driver, node string) (volume.Because, bool) {
	if !drivers.IsNodeLocal(w.View, s.CSI) {
		return drivers.Uncalled(w.View, s, w.leases.Calls(s.CSI))
	}
	if n := drivers.ControlPlane(w.View); n != nil {
		node = cmp.Or(node, n.Name)
	}
	if node == "" {
		return volume.Because{}, false
	}
	if l, down := w.NodeDown(node); down {
		l.Because.Message += "; only its controllers call driver " + s.CSI + " for its volumes"
		return l.Because, true
	}
	return drivers.UncalledOn(w.View, s, node)
}

// servedOn returns the node whose controllers serve the claim or the volume, if its driver is node-local; "" if it
// belongs to none.
func (f facts) servedOn() string {
	switch {
	case f.Volume != nil:
		return provision.MadeOn(f.Volume)
	case f.Claim != nil:
		return volume.SelectedNode(f.Claim.Annotations)
	}
	return ""
}

// uncalled returns the condition of an operation that only a driver's controller service can do, if no process calls
// it although the driver is registered on a node.
func (f facts) uncalled(driver string) (volume.Condition, bool) {
	b, ok := f.Uncalled(driverstatus.Driver{CSI: driver}, f.servedOn())
	return volume.Condition{Because: b, Stuck: true}, ok && drivers.Registered(f.View, driver, "")
}

// moved explains a volume or a claim, "namespace/name", that is missing or incomplete
// because it is being moved between a Flex plugin and the bridge: the migration deletes
// both and recreates them.
func (w Walk) moved(subject, pv, claim string) (chain.Link, bool) {
	i := slices.IndexFunc(w.Moves, func(m state.Move) bool {
		return pv != "" && m.Volume == pv || claim != "" && m.Claim == claim
	})
	if i < 0 {
		return chain.Link{}, false
	}
	b := migrate.Unfinished(w.Moves[i].Volume, w.Moves[i].Back)
	return chain.Broken(subject, b), true
}

// Walk follows the references from object to object, and calls the decisions about each.
type Walk struct {
	state.Objects
	// View finds the objects.
	View cluster.View
	*derived
	leases lease.Leases
	// deletions are the Pods that were deleted because of their nodes, the newest one first.
	deletions []state.Deletion
}

// derived is computed on first use.
type derived struct {
	// plans are those of nodes, by name.
	plans map[string]attach.NodePlan
	// free are the volumes that any claim may take.
	free *bind.Free
}

// Of returns the walk through the objects, which must not change any more.
func Of(o state.Objects) Walk {
	return Walk{
		Objects: o, View: o.View(), derived: &derived{plans: map[string]attach.NodePlan{}},
		leases: lease.Read(o.Leases, o.LeasesHidden, o.Now), deletions: o.Warnings.Deletions(),
	}
}

// claim returns the facts about a claim, which need not exist.
func (w Walk) claim(ns, name string) facts {
	f := facts{Walk: w, Namespace: ns, ClaimName: name, Claim: cluster.Find(w.View.Claims, ns+"/"+name)}
	class := ""
	if f.Claim != nil {
		class, _ = bind.ClassOf(f.Claim)
		f.Volume = cluster.Find(w.View.Volumes, f.Claim.Spec.VolumeName)
	}
	return f.withClass(class)
}

// volume returns the facts about a volume, and of the claim that it is bound to.
func (w Walk) volume(v *corev1.PersistentVolume) facts {
	if ref := v.Spec.ClaimRef; ref != nil &&
		(v.Status.Phase == corev1.VolumeBound || bind.Together(cluster.Find(w.View.Claims, ref.Namespace+"/"+ref.Name), v)) {
		return w.claim(ref.Namespace, ref.Name)
	}
	return facts{Walk: w, Volume: v}.withClass(bind.VolumeClassOf(v))
}

func (f facts) withClass(class string) facts {
	f.Class = cluster.Find(f.View.Classes, class)
	f.Driver = cluster.Find(f.View.Drivers, f.driverName())
	return f
}
