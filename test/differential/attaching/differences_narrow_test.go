package attaching

import (
	"os"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/test/internal/differential"
)

// TestAttachRowsAreNarrow: a reason that holds for a volume on one node explains differences of this volume
// on this node only, and reasons that hold for a volume do not explain more.
func TestAttachRowsAreNarrow(t *testing.T) {
	t.Parallel()
	const there = "volume v0 Bound for c0 uid of c0 "
	for _, c := range narrowCases(t) {
		// They have not been removed.
		for _, lines := range []*[]string{&c.ours, &c.theirs} {
			*lines = append(*lines, "claim c0 Bound ")
			if !differential.Has(*lines, there) {
				*lines = append(*lines, there)
			}
			slices.Sort(*lines)
		}
		if reason := differential.Explain(c.ours, c.theirs, attachRows()); (reason != "") != c.explained {
			t.Errorf("%s: explained by %q", c.name, reason)
		}
	}
}

// narrowCase has two states, and says whether a reason explains their difference.
type narrowCase struct {
	name         string
	ours, theirs []string
	explained    bool
}

// narrowCases reads the cases, and the lines by their names.
func narrowCases(t *testing.T) (out []narrowCase) {
	t.Helper()
	text, err := os.ReadFile("testdata/narrow.txt")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]string{}
	lines := func(names string) (all []string) {
		for _, n := range strings.Fields(names) {
			if named[n] == "" {
				t.Fatalf("there is no line %q", n)
			}
			all = append(all, named[n])
		}
		return all
	}
	for l := range strings.Lines(string(text)) {
		l = strings.TrimSpace(l)
		if name, line, ok := strings.Cut(l, " = "); ok {
			named[name] = line
		} else if name, states, ok := strings.Cut(l, ": "); ok && !strings.HasPrefix(l, "#") {
			ours, theirs, _ := strings.Cut(states, " | ")
			out = append(out, narrowCase{name[2:], lines(ours), lines(theirs), name[0] == '+'})
		}
	}
	if len(out) == 0 {
		t.Fatal("there are no cases")
	}
	return out
}
