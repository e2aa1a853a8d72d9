package volume

import (
	"slices"
	"testing"
)

func TestDelegatedTo(t *testing.T) {
	for value, want := range map[string][]string{
		"":                               nil,
		ControllersOnNodes:               nil,
		"node/nodes":                     {"nodes"},
		Delegation([]string{"a", "b.c"}): {"a", "b.c"},
		"node/a, node/b":                 {"a", "b"},
		"a,node/,node/b":                 {"b"},
	} {
		said := map[string]string{AnnControllers: value}
		if got := DelegatedTo(said); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
		if IsNodeLocal(said) != (value == ControllersOnNodes) || IsDelegatedTo(said, "nodes") != (value == "node/nodes") {
			t.Errorf("%q: node-local %v, delegated to the node nodes %v", value, IsNodeLocal(said), IsDelegatedTo(said, "nodes"))
		}
	}
}
