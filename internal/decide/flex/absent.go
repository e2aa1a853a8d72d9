package flex

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// Told returns what the bridge of a node says of the drivers that it finds
// there: what is wrong with each, by its CSI name, or "". It is nil when no
// bridge has said anything that can be understood.
func Told(n *corev1.Node) map[string]string {
	if n == nil {
		return nil
	}
	var all map[string]string
	if json.Unmarshal([]byte(n.Annotations[volume.AnnFlexDrivers]), &all) != nil {
		return nil
	}
	return all
}

// Absent says why a FlexVolume driver, by its CSI name, has not registered on a
// node, what is to be done, and by whom. The reason is empty when nothing is
// known that says more than that.
func Absent(csi string, n *corev1.Node) volume.Because {
	name, err := ParseCSI(csi)
	if err != nil || n == nil {
		return volume.Because{}
	}
	admin := "administrator of node " + n.Name
	because := func(reason volume.Reason, next, format string, args ...any) volume.Because {
		return volume.Because{Reason: reason, Next: next, Message: fmt.Sprintf(format, args...)}
	}
	all := Told(n)
	wrong, found := all[csi]
	switch {
	case all == nil:
		return because(volume.ReasonDriverMissing, admin,
			"node %s serves no FlexVolume drivers: start its agent with --volume-plugin-dir DIR, and install driver %s there with `volplane flex install %s FILE`", n.Name, name, name)
	case !found:
		return because(volume.ReasonDriverMissing, admin,
			"FlexVolume driver %s is not installed on node %s%s: install it there with `volplane flex install %s FILE`", name, n.Name, where(n), name)
	case wrong != "":
		return because(volume.ReasonDriverMissing, admin, "FlexVolume driver %s cannot be used on node %s: %s; mend it there, or install another version with `volplane flex install %s FILE`", name, n.Name, short(name, wrong), name)
	}
	return because(volume.ReasonDriverMissing, "node "+n.Name, "FlexVolume driver %s is ready on node %s and is about to register", name, n.Name)
}

// Lack is Absent in a few words that follow the name of the node.
func Lack(csi string, n *corev1.Node) string {
	name, err := ParseCSI(csi)
	if err != nil || n == nil {
		return ""
	}
	all := Told(n)
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
func short(name Name, wrong string) string {
	if rest, ok := strings.CutPrefix(wrong, "driver "+name.String()+" "); ok {
		return "it " + rest
	}
	return wrong
}

// where names the plugin directory of a node, if it is known.
func where(n *corev1.Node) string {
	if dir := n.Annotations[volume.AnnFlexDir]; dir != "" {
		return ", whose drivers are in " + dir
	}
	return ""
}
