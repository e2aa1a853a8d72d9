package mount

import (
	"strings"
	"testing"

	"volplane.dev/volplane/internal/volume"
)

func TestAils(t *testing.T) {
	const mi = 1 << 20
	for name, c := range map[string]struct {
		state State
		text  string
		next  volume.Actor
	}{
		"well": {
			State{Total: 100 * mi, Available: 50 * mi, Inodes: 10, InodesAvailable: 1}, "", volume.Actor{},
		},
		"nothing is known":            {State{}, "", volume.Actor{}},
		"no inodes are counted":       {State{Total: 100 * mi, Available: 50 * mi}, "", volume.Actor{}},
		"read-only":                   {State{ReadOnly: true}, "become read-only", volume.Administrator("n1")},
		"the driver says":             {State{DriverProblems: "one path is left"}, "one path is left", volume.Driver("d")},
		"full":                        {State{Total: 100 * mi}, "it is full", volume.User()},
		"all but full":                {State{Total: 100 * mi, Available: mi}, "it is full", volume.User()},
		"nearly full":                 {State{Total: 100 * mi, Available: mi + 1}, "", volume.Actor{}},
		"a large one is all but full": {State{Total: 1 << 40, Available: 16 * mi}, "it is full", volume.User()},
		"a large one has some room":   {State{Total: 1 << 40, Available: 17 * mi}, "", volume.Actor{}},
		"no inodes":                   {State{Inodes: 10}, "no inodes", volume.User()},
		"all at once": {
			State{ReadOnly: true, DriverProblems: "x", Total: 1}, "checked; x; it is full", volume.Administrator("n1"),
		},
	} {
		text, next := c.state.Problems("d", "n1")
		if !strings.Contains(text, c.text) || (text == "") != (c.text == "") || next != c.next {
			t.Errorf("%s: %q, next %q", name, text, next)
		}
	}
}
