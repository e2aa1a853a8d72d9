package app

import (
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/node"
)

// TestTrimmedObjectsAreNotUpdated: caches hold a part of each Pod and Node, and
// whoever updated one whole would take the rest from it. Nobody may.
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
