package planes

import (
	"testing"

	"volplane.dev/volplane/internal/volume"
)

// TestAssignment: which processes call a driver for which volumes, as its CSIDriver says.
func TestAssignment(t *testing.T) {
	plane := volume.Scope{Node: "one", Rest: true}
	of := func(node string) Assignment { return Assignment{Calls: true, Scope: volume.Scope{Node: node}} }
	everything, shared, none := Assignment{Calls: true}, Assignment{Calls: true, Shared: true}, Assignment{Shared: true}
	for name, row := range map[string]struct {
		says string
		// alone and among are those of a control plane that is alone and of one of several; two and three those of hosts.
		alone, among, two, three Assignment
	}{
		"node-local": {
			volume.ControllersOnNodes,
			Assignment{Calls: true, Scope: plane},
			Assignment{Calls: true, Scope: plane},
			of("two"), of("three"),
		},
		"delegated":     {volume.Delegation([]string{"two"}), shared, shared, shared, none},
		"says nothing":  {"", everything, shared, none, none},
		"has no object": {"none", everything, shared, none, none},
	} {
		said := map[string]string{volume.AnnControllers: row.says}
		if row.says == "none" {
			said = nil
		}
		if got := OfControlPlane(said, plane, true); got != row.alone {
			t.Errorf("%s: a control plane that is alone: %+v", name, got)
		}
		if got := OfControlPlane(said, plane, false); got != row.among {
			t.Errorf("%s: one of several: %+v", name, got)
		}
		for node, want := range map[string]Assignment{"two": row.two, "three": row.three} {
			if got := OfHost(said, node); got != want {
				t.Errorf("%s: host %s: %+v", name, node, got)
			}
		}
	}
}
