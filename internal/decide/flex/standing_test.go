package flex_test

import (
	"fmt"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func TestStand(t *testing.T) {
	refused := volume.Because{Reason: volume.ReasonFlexDriverRefused, Message: "it is not executed", Next: volume.User()}
	var out strings.Builder
	for _, c := range []struct {
		argues string
		facts  flex.DriverFacts
	}{
		{"what has just come is not used yet", flex.DriverFacts{Present: true}},
		{"init said yes", flex.DriverFacts{Present: true, Probed: true}},
		{"init said no", flex.DriverFacts{Present: true, Probed: true, Failure: "exit code 3"}},
		{"the version before does not stand in for a broken one", flex.DriverFacts{
			Present: true, Probed: true, Failure: "exit code 3", Kept: "abcd",
		}},
		{"but what it mounted it unmounts", flex.DriverFacts{
			Present: true, Probed: true, Failure: "exit code 3", Kept: "abcd", InUse: 2,
		}},
		{"what was never in order cannot", flex.DriverFacts{Present: true, Probed: true, Failure: "exit code 3", InUse: 1}},
		{"what must not run does not", flex.DriverFacts{Refused: refused}},
		{"nor while it is in use", flex.DriverFacts{Refused: refused, InUse: 1, Kept: "abcd"}},
		{"gone", flex.DriverFacts{Kept: "abcd"}},
		{"gone though volumes depend on it", flex.DriverFacts{Kept: "abcd", InUse: 1}},
		{"gone before anybody could keep it", flex.DriverFacts{InUse: 3}},
		{"a driver that attaches now may replace one that did not", flex.DriverFacts{
			Present: true, Probed: true, Attaches: true,
		}},
		{"with volumes in use somebody should know", flex.DriverFacts{Present: true, Probed: true, Attaches: true, InUse: 1}},
		{"and the reverse", flex.DriverFacts{Present: true, Probed: true, Attached: true, InUse: 2}},
	} {
		f := c.facts
		f.Name = "example.com/lofs"
		standing, why := flex.Stand(f)
		fmt.Fprintf(&out, "# %s\npresent=%v refused=%q probed=%v failure=%q kept=%q attaches=%v before=%v "+
			"inUse=%d\n----\n%s\n%s: %s -> %s\n\n", c.argues,
			f.Present, f.Refused.Message, f.Probed, f.Failure, f.Kept, f.Attaches, f.Attached, f.InUse, standing, why.Reason,
			why.Message, why.Next)
	}
	golden.Equal(t, "testdata/standings.txt", out.String())
}
