package flex

import (
	"strings"
	"testing"

	"volplane.dev/volplane/internal/workshop/finding"
)

// TestWorksIn: only what breaks a host keeps a driver from working there.
func TestWorksIn(t *testing.T) {
	t.Parallel()
	in := func(check string, level finding.Level, hosts ...finding.Host) finding.Finding {
		return finding.Finding{Check: check, Level: level, Breaks: hosts}
	}
	for _, c := range []struct {
		name string
		all  []finding.Finding
		want Works
		by   string
	}{
		{"nothing found", nil, Works{true, true}, ""},
		{
			"passed, and a matter of form",
			[]finding.Finding{in("a", finding.Pass), in("b", finding.Warn)},
			Works{true, true},
			"",
		},
		{"a secret is shown", []finding.Finding{in("secrets", finding.Fail)}, Works{true, true}, ""},
		{"no data is kept", []finding.Finding{in("data", finding.Fail, Hosts()...)}, Works{false, false}, "data"},
		{"noise", []finding.Finding{in("standard-error", finding.Fail, Kubernetes)}, Works{false, true}, "standard-error"},
		{"two names", []finding.Finding{in("getvolumename", finding.Fail, Volplane)}, Works{true, false}, ""},
		{
			"one for each",
			[]finding.Finding{in("a", finding.Fail, Volplane), in("b", finding.Pass), in("c", finding.Fail, Kubernetes)},
			Works{false, false},
			"c",
		},
		{
			"each check once",
			[]finding.Finding{
				in("a", finding.Fail, Kubernetes), in("b", finding.Fail, Kubernetes), in("a", finding.Fail, Kubernetes),
			},
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
	if got := PodAuthor.Should("give options") + finding.Administrator.Should(""); got != "Pod's author: give options" {
		t.Error(got)
	}
}
