package objects

import (
	"testing"
)

// TestMeant: a word that is not a type may be that of people for one, or the name of a claim.
func TestMeant(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"snapshots": "volumesnapshot", "Snapshot": "volumesnapshot", "volumes": "pv", "claims": "pvc", "classes": "sc",
		"class": "sc", "attachments": "volumeattachment", "drivers": "csidriver", "data": "pvc/data", "logs": "pvc/logs",
	} {
		if got := meant(word); got != want {
			t.Errorf("%s: %s, want %s", word, got, want)
		}
	}
}
