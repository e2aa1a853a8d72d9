package volume

import (
	"cmp"
	"slices"
	"strings"
)

// SelectedNode returns the node for which the volume of the claim with these annotations is to be made, or "".
func SelectedNode(annotations map[string]string) string {
	return cmp.Or(annotations[AnnSelectedNode], annotations[AnnAlphaSelectedNode])
}

// IsNodeLocal says whether the CSIDriver with these annotations is of a driver whose controllers run on each node.
func IsNodeLocal(annotations map[string]string) bool {
	return annotations[AnnControllers] == ControllersOnNodes
}

// delegate is the prefix of each node in the value of AnnControllers.
const delegate = "node/"

// Delegation returns the value of AnnControllers that lets the hosts of these nodes call a driver for all volumes,
// beside the control plane's: "node/a,node/b".
func Delegation(nodes []string) string {
	var out []string
	for _, n := range nodes {
		out = append(out, delegate+n)
	}
	return strings.Join(out, ",")
}

// DelegatedTo returns the nodes that the annotations of a CSIDriver name by Delegation.
func DelegatedTo(annotations map[string]string) []string {
	var out []string
	for _, one := range strings.Split(annotations[AnnControllers], ",") {
		if node, ok := strings.CutPrefix(strings.TrimSpace(one), delegate); ok && node != "" {
			out = append(out, node)
		}
	}
	return out
}

// IsDelegatedTo says whether the host of a node may call the driver with these annotations for all volumes.
func IsDelegatedTo(annotations map[string]string, node string) bool {
	return slices.Contains(DelegatedTo(annotations), node)
}

// Scope says for which volumes of a driver a process is the controller. The zero value means for all of them.
type Scope struct {
	// Node is the node whose volumes these are: those that are to be made for it, and those that were made on it.
	// Empty means all nodes.
	Node string
	// Rest says that the volumes are included that belong to no node.
	Rest bool
}

// Has says whether the volumes of a node are in the scope; an empty name stands for those that belong to none.
func (s Scope) Has(node string) bool {
	return s.Node == "" || node == s.Node || node == "" && s.Rest
}

// IsLost says whether what the controllers of the node home serve was given up together with that node.
func IsLost(annotations map[string]string, home string) bool {
	return home != "" && annotations[AnnLostWith] == home
}

// LostWithNode explains that an object was given up together with a node; false if it was not. what is the object's
// kind and name.
func LostWithNode(what string, annotations map[string]string) (Because, bool) {
	node := annotations[AnnLostWith]
	return Say(ReasonLostWithNode, User(), what+" was lost with node "+node+", which was given up; if its host returns, "+
		"`volplane invite "+node+"` brings it back, and if not, its data are gone"), node != ""
}
