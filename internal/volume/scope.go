package volume

// IsNodeLocal says whether the CSIDriver with these annotations is of a driver whose controllers run on each node.
func IsNodeLocal(annotations map[string]string) bool {
	return annotations[AnnControllers] == ControllersOnNodes
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
