// Package note reads the notes on a Node about drivers: which ones a host of drivers, the bridge, has, and what is
// wrong with each. Decisions, controllers and the node agent know no more of such drivers; FlexVolume drivers are the
// only ones. Of other drivers there are notes only if something is wrong: they were not registered, or their programs
// do not run.
package note

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

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

// Hosted says whether a volume's driver belongs to a host of drivers. Nil has none.
func Hosted(v *corev1.PersistentVolume) bool { return v != nil && v.Spec.FlexVolume != nil }

// HostedInline is Hosted for an inline volume of a Pod.
func HostedInline(v *corev1.Volume) bool { return v.FlexVolume != nil }

// Inherit sets the source of an object that stands for a Pod's inline volume, so that Hosted is
// equal for both.
func Inherit(pv *corev1.PersistentVolume, v *corev1.Volume) {
	if v.FlexVolume != nil {
		pv.Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{Driver: v.FlexVolume.Driver}
	}
}

// Of returns what is wrong with each driver of which a Node has notes, by CSI name; "" for a driver of its host that is
// all right. It is nil if the Node has no valid notes.
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
		return "FlexVolume driver " + d.Name()
	}
	return "driver " + d.Name()
}

// Next returns the driver as the one that acts next.
func (d Driver) Next() volume.Actor {
	if d.Hosted {
		return volume.FlexDriver(d.Name())
	}
	return volume.Driver(d.CSI)
}

// Subject returns a host's driver in the form KIND/NAME.
func (d Driver) Subject() string { return subjectPrefix + d.Name() }

// Elsewhere returns advice for a Pod without a node; "" if the driver does not belong to a host.
func (d Driver) Elsewhere() string {
	name, err := flex.ParseCSI(d.CSI)
	if err != nil || !d.Hosted {
		return ""
	}
	return fmt.Sprintf("; the Pod can be where %s is: install it with `volplane flex install %s FILE` on a node", d, name)
}

// subjectPrefix is how Subject begins.
const subjectPrefix = "flexdriver/"

// Install returns the words of the command by which the administrator of a node ends what Absent has told; nil if no
// driver has to be installed.
func Install(b volume.Because) []string {
	name, hosted := strings.CutPrefix(b.Object, subjectPrefix)
	if !hosted || b.Next.Kind != volume.KindAdministrator {
		return nil
	}
	return []string{"volplane", "flex", "install", name, "FILE"}
}

// Absent returns why a driver has not registered on a node, and who has to do what. The reason is empty if the notes do
// not say.
func Absent(csi string, n *corev1.Node) volume.Because {
	if wrong := refusedOn(n)[csi]; wrong != "" {
		return volume.Sayf(volume.ReasonRegistrationRefused, volume.Administrator(n.Name),
			"driver %s cannot be used on node %s: %s", csi, n.Name, wrong)
	}
	name, err := flex.ParseCSI(csi)
	if err != nil || n == nil {
		return volume.Because{}
	}
	admin := volume.Administrator(n.Name)
	because := func(next volume.Actor, format string, args ...any) volume.Because {
		return volume.Because{
			Reason: volume.ReasonDriverMissing, Next: next, Message: fmt.Sprintf(format, args...),
			Cause: volume.Cause{Object: subjectPrefix + name.String(), Node: n.Name},
		}
	}
	all := hostedOn(n)
	wrong, found := all[csi]
	switch {
	case all == nil:
		return because(admin,
			"node %s serves no FlexVolume drivers: start its agent with --volume-plugin-dir DIR, and install driver %s there "+
				"with `volplane flex install %s FILE`", n.Name, name, name)
	case !found:
		return because(admin,
			"FlexVolume driver %s is not installed on node %s%s: install it there with `volplane flex install %s FILE`", name,
			n.Name, where(n), name)
	case wrong != "":
		return because(admin, "FlexVolume driver %s cannot be used on node %s: %s; mend it "+
			"there, or install another version with `volplane flex install %s FILE`", name, n.Name, short(name, wrong), name)
	}
	return because(volume.NodeAgent(n.Name),
		"FlexVolume driver %s is ready on node %s and is about to register", name, n.Name)
}

// Lack is Absent in a few words, to follow the name of the node.
func Lack(csi string, n *corev1.Node) string {
	name, err := flex.ParseCSI(csi)
	if err != nil || n == nil {
		return ""
	}
	all := hostedOn(n)
	wrong, found := all[csi]
	switch {
	case all == nil:
		return "it serves no FlexVolume drivers, and driver " + name.String() + " is needed"
	case !found:
		return "FlexVolume driver " + name.String() + " is not installed there"
	case wrong != "":
		return "FlexVolume driver " + name.String() + " cannot be used there: " + short(name, wrong)
	}
	return "FlexVolume driver " + name.String() + " is about to register there"
}

// short returns what is wrong with a driver, without the driver's name.
func short(name flex.Name, wrong string) string {
	if rest, ok := strings.CutPrefix(wrong, "driver "+name.String()+" "); ok {
		return "it " + rest
	}
	return wrong
}

// where returns the plugin directory of a node, if it is known.
func where(n *corev1.Node) string {
	if dir := n.Annotations[volume.AnnDriverDir]; dir != "" {
		return ", whose drivers are in " + dir
	}
	return ""
}
