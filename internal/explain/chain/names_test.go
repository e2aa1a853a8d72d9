package chain

import "testing"

// TestNames: a message names a few objects, however many there are.
func TestNames(t *testing.T) {
	t.Parallel()
	for want, all := range map[string][]string{
		"":                         nil,
		"a":                        {"a"},
		"a, b, c, d, e":            {"a", "b", "c", "d", "e"},
		"a, b, c, d, e and 2 more": {"a", "b", "c", "d", "e", "f", "g"},
	} {
		if got := Names(all); got != want {
			t.Errorf("%v: %q, want %q", all, got, want)
		}
	}
}
