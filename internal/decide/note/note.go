// Package note reads what the host of drivers on a node has noted of them on the Node: which there are, and what is
// wrong with each. It is all that deciders, controllers and the node agent know of such drivers. Those of FlexVolume
// are the ones there are.
package note

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/volume"
)

// Driver is a driver that somebody needs.
type Driver struct {
	// CSI is its CSI name.
	CSI string
	// Hosted says that it is a host's, by the word of whoever wrote the volume.
	Hosted bool
}

// Hosted says whether a volume is of a driver of a host; no volume is not.
func Hosted(v *corev1.PersistentVolume) bool { return v != nil && v.Spec.FlexVolume != nil }

// HostedInline says so of a volume that a Pod names itself.
func HostedInline(v *corev1.Volume) bool { return v.FlexVolume != nil }

// Inherit has the object that stands for a volume of a Pod say as the Pod does whose driver it is.
func Inherit(pv *corev1.PersistentVolume, v *corev1.Volume) {
	if v.FlexVolume != nil {
		pv.Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{Driver: v.FlexVolume.Driver}
	}
}

// Of returns what the host of a node says of the drivers that it finds there:
// what is wrong with each, by its CSI name, or "". It is nil when no host has said
// anything that can be understood.
func Of(n *corev1.Node) map[string]string {
	if n == nil {
		return nil
	}
	var all map[string]string
	if json.Unmarshal([]byte(n.Annotations[volume.AnnDriverNotes]), &all) != nil {
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

// String returns the driver in a sentence.
func (d Driver) String() string {
	if d.Hosted {
		return "FlexVolume driver " + d.Name()
	}
	return "driver " + d.Name()
}

// Next is the driver as the one who acts next.
func (d Driver) Next() string {
	if d.Hosted {
		return d.String()
	}
	return d.CSI
}

// Subject is the driver of a host as the object that something is said of.
func (d Driver) Subject() string { return "flexdriver/" + d.Name() }

// Elsewhere says of a Pod without a node what would give it one; it is empty when
// the driver is no host's, or the message that the Pod has got is not about it.
func (d Driver) Elsewhere(message string) string {
	name, err := flex.ParseCSI(d.CSI)
	if err != nil || !d.Hosted || !strings.Contains(message, name.String()) {
		return ""
	}
	return fmt.Sprintf("; the Pod can be where %s is: install it with `volplane flex install %s FILE` on a node", d, name)
}

// Absent says why a driver of a host has not registered on a node, what is to be
// done, and by whom. The reason is empty when nothing is known that says more
// than that.
func Absent(csi string, n *corev1.Node) volume.Because {
	name, err := flex.ParseCSI(csi)
	if err != nil || n == nil {
		return volume.Because{}
	}
	admin := "administrator of node " + n.Name
	because := func(reason volume.Reason, next, format string, args ...any) volume.Because {
		return volume.Because{Reason: reason, Next: next, Message: fmt.Sprintf(format, args...)}
	}
	all := Of(n)
	wrong, found := all[csi]
	switch {
	case all == nil:
		return because(volume.ReasonDriverMissing, admin,
			"node %s serves no FlexVolume drivers: start its agent with --volume-plugin-dir DIR, and install driver %s there "+
				"with `volplane flex install %s FILE`", n.Name, name, name)
	case !found:
		return because(volume.ReasonDriverMissing, admin,
			"FlexVolume driver %s is not installed on node %s%s: install it there with `volplane flex install %s FILE`", name,
			n.Name, where(n), name)
	case wrong != "":
		return because(volume.ReasonDriverMissing, admin, "FlexVolume driver %s cannot be used on node %s: %s; mend it "+
			"there, or install another version with `volplane flex install %s FILE`", name, n.Name, short(name, wrong), name)
	}
	return because(volume.ReasonDriverMissing, "node "+n.Name,
		"FlexVolume driver %s is ready on node %s and is about to register", name, n.Name)
}

// Lack is Absent in a few words that follow the name of the node.
func Lack(csi string, n *corev1.Node) string {
	name, err := flex.ParseCSI(csi)
	if err != nil || n == nil {
		return ""
	}
	all := Of(n)
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

// short returns what is wrong with a driver that has been named already.
func short(name flex.Name, wrong string) string {
	if rest, ok := strings.CutPrefix(wrong, "driver "+name.String()+" "); ok {
		return "it " + rest
	}
	return wrong
}

// where names the plugin directory of a node, if it is known.
func where(n *corev1.Node) string {
	if dir := n.Annotations[volume.AnnDriverDir]; dir != "" {
		return ", whose drivers are in " + dir
	}
	return ""
}

// Options returns what a volume of a host says to its driver; nil for any other volume.
func Options(s *corev1.PersistentVolumeSpec) map[string]string {
	if s.FlexVolume == nil {
		return nil
	}
	return s.FlexVolume.Options
}

// OptionsInline returns the same of a volume that a Pod names itself.
func OptionsInline(v *corev1.Volume) map[string]string {
	if v.FlexVolume == nil {
		return nil
	}
	return v.FlexVolume.Options
}

// Copy has a volume be of the host's driver that another one is of, with other options and
// without its Secret.
func Copy(to, from *corev1.PersistentVolumeSpec, options map[string]string) {
	if d := from.FlexVolume; d != nil {
		to.FlexVolume = &corev1.FlexPersistentVolumeSource{
			Driver: d.Driver, FSType: d.FSType, ReadOnly: d.ReadOnly, Options: options,
		}
	}
}

// CopyInline does the same with volumes that Pods name themselves.
func CopyInline(to, from *corev1.Volume, options map[string]string) {
	if d := from.FlexVolume; d != nil {
		to.FlexVolume = &corev1.FlexVolumeSource{Driver: d.Driver, FSType: d.FSType, ReadOnly: d.ReadOnly, Options: options}
	}
}
