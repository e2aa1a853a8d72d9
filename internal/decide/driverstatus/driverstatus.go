// Package driverstatus reads the notes on a Node about drivers: which ones a host of drivers, the bridge, has, and what
// is wrong with each. Decisions, controllers and the node agent know nothing else about such drivers; only FlexVolume
// drivers are served so, and their wording is in decide/flex. Other drivers have notes only if something is wrong: they
// were not registered, or their programs do not run.
package driverstatus

import (
	"encoding/json"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/volume"
)

// Driver is a driver that is needed.
type Driver struct {
	// CSI is the driver's CSI name.
	CSI string
	// Hosted says that the driver belongs to a host of drivers, according to the volume's source.
	Hosted bool
}

// Hosted says whether a volume's driver belongs to a host of drivers; false for nil.
func Hosted(v *corev1.PersistentVolume) bool { return v != nil && v.Spec.FlexVolume != nil }

// HostedInline is Hosted for an inline volume of a Pod.
func HostedInline(v *corev1.Volume) bool { return v.FlexVolume != nil }

// Inherit sets the source of an object made from a Pod's inline volume: Hosted is then equal for both.
func Inherit(pv *corev1.PersistentVolume, v *corev1.Volume) {
	if v.FlexVolume != nil {
		pv.Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{Driver: v.FlexVolume.Driver}
	}
}

// Of returns what is wrong with each driver that a Node has notes about, by CSI name; "" means a healthy driver of its
// host. It is nil if the Node has no valid notes.
func Of(n *corev1.Node) map[string]string {
	refused, hosted := refusedOn(n), hostedOn(n)
	if hosted == nil {
		return refused
	}
	maps.Copy(hosted, refused)
	return hosted
}

// refusedOn returns why drivers were not registered on a node, or do not run there; nil if it says nothing of any. If
// the program of a driver does not run, that is why it was not registered.
func refusedOn(n *corev1.Node) map[string]string {
	refused, notRun := notes(n, volume.AnnRefused), notes(n, volume.AnnNotRun)
	if refused == nil {
		return notRun
	}
	maps.Copy(refused, notRun)
	return refused
}

// hostedOn returns the notes of a node's host of drivers.
func hostedOn(n *corev1.Node) map[string]string { return notes(n, volume.AnnDriverNotes) }

// notes returns the notes in an annotation; nil if there are no valid ones.
func notes(n *corev1.Node, annotation string) map[string]string {
	if n == nil {
		return nil
	}
	var all map[string]string
	if json.Unmarshal([]byte(n.Annotations[annotation]), &all) != nil {
		return nil
	}
	return all
}

// Name returns the driver's name as its users know it.
func (d Driver) Name() string {
	if name, err := flex.ParseCSI(d.CSI); err == nil && d.Hosted {
		return name.String()
	}
	return d.CSI
}

// String returns the driver for use in a sentence.
func (d Driver) String() string {
	if d.Hosted {
		return d.Next().String()
	}
	return "driver " + d.CSI
}

// Next returns the driver as the actor that acts next.
func (d Driver) Next() volume.Actor {
	if d.Hosted {
		return volume.FlexDriver(d.Name())
	}
	return volume.Driver(d.CSI)
}

// Subject returns a host's driver in the form KIND/NAME.
func (d Driver) Subject() string { return flex.Subject(d.Name()) }

// Elsewhere returns advice for a Pod without a node; "" if the driver does not belong to a host.
func (d Driver) Elsewhere() string {
	if !d.Hosted {
		return ""
	}
	return flex.Elsewhere(d.CSI)
}

// Install returns the command with which a node's administrator resolves what Absent has returned; nil if no driver has
// to be installed.
func Install(b volume.Because) []string { return flex.Install(b) }

// Absent returns why a driver has not registered on a node, and who has to act. The reason is empty if the notes do not
// say.
func Absent(csi string, n *corev1.Node) volume.Because {
	if wrong := refusedOn(n)[csi]; wrong != "" {
		return volume.Sayf(volume.ReasonRegistrationRefused, volume.Administrator(n.Name),
			"driver %s cannot be used on node %s: %s", csi, n.Name, wrong)
	}
	b, _ := flex.Absent(csi, n, hostedOn(n))
	return b
}

// Lack is Absent in a few words, to follow the name of the node.
func Lack(csi string, n *corev1.Node) string {
	_, short := flex.Absent(csi, n, hostedOn(n))
	return short
}
