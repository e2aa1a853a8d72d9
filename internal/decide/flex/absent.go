package flex

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// subjectPrefix is how Subject begins.
const subjectPrefix = "flexdriver/"

// Subject returns a driver in the form KIND/NAME.
func Subject(name string) string { return subjectPrefix + name }

// Elsewhere returns advice for a Pod without a node that needs a driver; "" if no FlexVolume driver has such a CSI
// name.
func Elsewhere(csi string) string {
	name, err := ParseCSI(csi)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("; the Pod can be where FlexVolume driver %s is: install it with `volplane flex install %s FILE` "+
		"on a node", name, name)
}

// Install returns the words of the command by which the administrator of a node ends what Absent has returned; nil if
// no driver has to be installed.
func Install(b volume.Because) []string {
	name, ok := strings.CutPrefix(b.Object, subjectPrefix)
	if !ok || b.Next.Kind != volume.KindAdministrator {
		return nil
	}
	return []string{"volplane", "flex", "install", name, "FILE"}
}

// Absent returns why a driver has not registered on a node, and who has to do what; and the same in a few words, to
// follow the name of the node. notes say what is wrong with each driver there, by CSI name, and are nil for a node
// without a bridge. Both results are empty if no FlexVolume driver has such a CSI name, or the node is gone.
func Absent(csi string, n *corev1.Node, notes map[string]string) (b volume.Because, short string) {
	name, err := ParseCSI(csi)
	if err != nil || n == nil {
		return volume.Because{}, ""
	}
	b = volume.Because{
		Reason: volume.ReasonDriverMissing, Next: volume.Administrator(n.Name),
		Cause: volume.Cause{Object: Subject(name.String()), Node: n.Name},
	}
	wrong, found := notes[csi]
	switch {
	case notes == nil:
		b.Message = fmt.Sprintf("node %s serves no FlexVolume drivers: start its agent with --volume-plugin-dir DIR, and "+
			"install driver %s there with `volplane flex install %s FILE`", n.Name, name, name)
		return b, "it serves no FlexVolume drivers, and driver " + name.String() + " is needed"
	case !found:
		where := n.Annotations[volume.AnnDriverDir]
		if where != "" {
			where = ", whose drivers are in " + where
		}
		b.Message = fmt.Sprintf("FlexVolume driver %s is not installed on node %s%s: install it there with `volplane flex "+
			"install %s FILE`", name, n.Name, where, name)
		return b, "FlexVolume driver " + name.String() + " is not installed there"
	case wrong != "":
		if rest, ok := strings.CutPrefix(wrong, "driver "+name.String()+" "); ok {
			wrong = "it " + rest
		}
		b.Message = fmt.Sprintf("FlexVolume driver %s cannot be used on node %s: %s; repair it there, or install another "+
			"version with `volplane flex install %s FILE`", name, n.Name, wrong, name)
		return b, "FlexVolume driver " + name.String() + " cannot be used there: " + wrong
	}
	b.Next = volume.NodeAgent(n.Name)
	b.Message = fmt.Sprintf("FlexVolume driver %s is ready on node %s and is about to register", name, n.Name)
	return b, "FlexVolume driver " + name.String() + " is about to register there"
}
