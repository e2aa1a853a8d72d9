package flex

import (
	"strings"
	"testing"
)

// TestWorksIn: only what breaks a host keeps a driver from working there.
func TestWorksIn(t *testing.T) {
	t.Parallel()
	in := func(check string, level Level, hosts ...Host) Finding {
		return Finding{Check: check, Level: level, Breaks: hosts}
	}
	for _, c := range []struct {
		name string
		all  []Finding
		want Works
		by   string
	}{
		{"nothing found", nil, Works{true, true}, ""},
		{"passed, and a matter of form", []Finding{in("a", Pass), in("b", Warn)}, Works{true, true}, ""},
		{"a secret is shown", []Finding{in("secrets", Fail)}, Works{true, true}, ""},
		{"no data is kept", []Finding{in("data", Fail, Hosts()...)}, Works{false, false}, "data"},
		{"noise", []Finding{in("standard-error", Fail, Kubernetes)}, Works{false, true}, "standard-error"},
		{"two names", []Finding{in("getvolumename", Fail, Volplane)}, Works{true, false}, ""},
		{
			"one for each",
			[]Finding{in("a", Fail, Volplane), in("b", Pass), in("c", Fail, Kubernetes)},
			Works{false, false},
			"c",
		},
		{
			"each check once",
			[]Finding{in("a", Fail, Kubernetes), in("b", Fail, Kubernetes), in("a", Fail, Kubernetes)},
			Works{false, true},
			"a b",
		},
	} {
		if got := WorksIn(c.all); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if by := strings.Join(BrokenBy(c.all, Kubernetes), " "); by != c.by {
			t.Errorf("%s: not in Kubernetes by %q, want %q", c.name, by, c.by)
		}
	}
}

// TestShould: an advice names who has to act, and no advice nobody.
func TestShould(t *testing.T) {
	t.Parallel()
	if got := PodAuthor.Should("give options") + Administrator.Should(""); got != "Pod's author: give options" {
		t.Error(got)
	}
}
