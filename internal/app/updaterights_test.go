package app

import (
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/node"
)

// TestTrimmedObjectsAreNotUpdated: caches hold only some fields of each Pod and Node, so
// an update of a cached object would remove the other fields. No role may update them.
func TestTrimmedObjectsAreNotUpdated(t *testing.T) {
	rights := node.Rights()
	for _, d := range Declarations() {
		rights = append(rights, d.Rights()...)
	}
	for _, a := range rights {
		if kind, _, _ := strings.Cut(a.Resource, "/"); a.Group == "" && (kind == "pods" || kind == "nodes") &&
			slices.Contains(a.Verbs, "update") {
			t.Errorf("%s may be updated", a.Resource)
		}
	}
}
