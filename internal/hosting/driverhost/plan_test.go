package driverhost

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/hosting/driverfile"
)

// TestPlan: what is done about drivers that are followed, whose files say something else, are broken, or are gone.
func TestPlan(t *testing.T) {
	for _, c := range []struct{ what, now, files, broken, known, want string }{
		{"nothing", "", "", "", "", "leave [] stop [] start []"},
		{"a new driver", "", "a=1", "", "", "leave [] stop [] start [a]"},
		{"it runs from before", "", "a=1", "", "a", "leave [] stop [] start [a]"},
		{"it is followed", "a=1", "a=1", "", "a", "leave [] stop [] start []"},
		{"its file has changed", "a=1", "a=2", "", "a", "leave [a] stop [] start [a]"},
		{"its file is gone", "a=1 b=1", "b=1", "", "a b", "leave [a] stop [a] start []"},
		{"its file went while nobody looked", "", "b=1", "", "a b", "leave [] stop [a] start [b]"},
		{"its file cannot be used", "a=1", "", "/d/a.yaml", "a", "leave [] stop [] start []"},
		{
			"its file cannot be used, and it has two processes", "a=2p", "", "/d/a.yml", "a-node a-controller",
			"leave [] stop [] start []",
		},
		{"another file cannot be used", "a=1 b=1", "", "/d/b.yaml", "a b", "leave [a] stop [a] start []"},
		{"it has two processes now", "a=1", "a=2p", "", "a", "leave [a] stop [a] start [a]"},
		{
			"it has one process now", "a=2p", "a=1", "", "a-controller a-node",
			"leave [a] stop [a-controller a-node] start [a]",
		},
		{"somebody else runs it now", "a=1", "a=socket", "", "a", "leave [a] stop [a] start [a]"},
		{"the directory cannot be read", "a=1", "", "/d", "a b", "leave [] stop [] start []"},
	} {
		now, broken := map[string]driverfile.Driver{}, map[string]error{}
		for _, d := range drivers(c.now) {
			now[d.Name] = d
		}
		for _, path := range strings.Fields(c.broken) {
			broken[path] = errors.New("no")
		}
		p := planOf(now, drivers(c.files), broken, strings.Fields(c.known), "/d")
		var start []string
		for _, d := range p.start {
			start = append(start, d.Name)
		}
		slices.Sort(p.leave)
		if got := fmt.Sprintf("leave %v stop %v start %v", p.leave, p.stop, start); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// drivers returns drivers that are written as name=kind, where the kind is 2p for two processes, socket for one that
// volplane does not run, and anything else an argument of the only process.
func drivers(text string) []driverfile.Driver {
	var out []driverfile.Driver
	for _, one := range strings.Fields(text) {
		name, kind, _ := strings.Cut(one, "=")
		node, controller := []driverfile.Role{driverfile.RoleNode}, []driverfile.Role{driverfile.RoleController}
		d := driverfile.Driver{Name: name}
		switch kind {
		case "2p":
			d.Processes = []driverfile.Process{{Roles: node, Exec: []string{"/x"}}, {Roles: controller, Exec: []string{"/x"}}}
		case "socket":
			d.Processes = []driverfile.Process{{Roles: append(node, controller...), Socket: "/s"}}
		default:
			d.Processes = []driverfile.Process{{Roles: append(node, controller...), Exec: []string{"/x", kind}}}
		}
		out = append(out, d)
	}
	return out
}
