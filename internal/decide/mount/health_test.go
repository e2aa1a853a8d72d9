package mount

import (
	"strings"
	"testing"
)

func TestAils(t *testing.T) {
	const mi = 1 << 20
	for name, c := range map[string]struct {
		state      State
		text, next string
	}{
		"well":                        {State{Total: 100 * mi, Available: 50 * mi, Inodes: 10, InodesAvailable: 1}, "", ""},
		"nothing is known":            {State{}, "", ""},
		"no inodes are counted":       {State{Total: 100 * mi, Available: 50 * mi}, "", ""},
		"read-only":                   {State{ReadOnly: true}, "read-only by itself", "administrator of node n1"},
		"the driver says":             {State{DriverProblems: "one path is left"}, "one path is left", "d"},
		"full":                        {State{Total: 100 * mi}, "it is full", "user"},
		"all but full":                {State{Total: 100 * mi, Available: mi}, "it is full", "user"},
		"nearly full":                 {State{Total: 100 * mi, Available: mi + 1}, "", ""},
		"a large one is all but full": {State{Total: 1 << 40, Available: 16 * mi}, "it is full", "user"},
		"a large one has some room":   {State{Total: 1 << 40, Available: 17 * mi}, "", ""},
		"no inodes":                   {State{Inodes: 10}, "no inodes", "user"},
		"all at once": {
			State{ReadOnly: true, DriverProblems: "x", Total: 1}, "checked; x; it is full", "administrator of node n1",
		},
	} {
		text, next := c.state.Problems("d", "n1")
		if !strings.Contains(text, c.text) || (text == "") != (c.text == "") || next != c.next {
			t.Errorf("%s: %q, next %q", name, text, next)
		}
	}
}
