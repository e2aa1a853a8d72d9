package packages_test

import (
	"os/exec"
	"testing"

	"volplane.dev/volplane/release/packages"
)

// TestVersion: the versions of packages sort as those of the source do, and dpkg agrees.
func TestVersion(t *testing.T) {
	before := ""
	for _, c := range []struct{ described, want string }{
		{"59844836f", "0.0.0~git.59844836f"},
		{"v0.1.0-alpha.1", "0.1.0~alpha.1"},
		{"v0.1.0-rc.1", "0.1.0~rc.1"},
		{"v0.1.0-rc.1-3-gabcdef0", "0.1.0~rc.1+3.gabcdef0"},
		{"v0.1.0", "0.1.0"},
		{"v0.1.0-3-gabcdef0", "0.1.0+3.gabcdef0"},
		{"v0.1.0-3-gabcdef0-dirty", "0.1.0+3.gabcdef0.dirty"},
		{"v0.2.0", "0.2.0"},
	} {
		got := packages.Version(c.described)
		if got != c.want {
			t.Errorf("%s is %s, want %s", c.described, got, c.want)
		}
		if before != "" {
			if err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", before, "lt", got).Run(); err != nil {
				t.Errorf("%s does not sort before %s", before, got)
			}
		}
		before = got
	}
}
