package kubetest

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestMeant: a patch is about the conditions that it names if the server adds them to the others, and about all if it
// replaces them.
func TestMeant(t *testing.T) {
	const patch = `{"status":{"conditions":[{"type":"Unused","status":"True"}]}}`
	for _, c := range []struct {
		kind types.PatchType
		path string
		want bool
	}{
		{types.StrategicMergePatchType, "status.conditions[Unused].status", true},
		{types.StrategicMergePatchType, "status.conditions[Resizing].status", false},
		{types.MergePatchType, "status.conditions[Unused].status", true},
		{types.MergePatchType, "status.conditions[Resizing].status", true},
		{types.MergePatchType, "status.phase", false},
	} {
		if got := Meant(c.kind, []byte(patch), c.path); got != c.want {
			t.Errorf("%s, %s: %v", c.kind, c.path, got)
		}
	}
}
