package selinux

import (
	"strings"
	"testing"

	"github.com/opencontainers/selinux/go-selinux"
	corev1 "k8s.io/api/core/v1"
)

// TestFileLabel: only a host with SELinux has labels, and only options with a level have a known one.
func TestFileLabel(t *testing.T) {
	for name, o := range map[string]*corev1.SELinuxOptions{
		"nothing": nil, "no level": {User: "u", Role: "r", Type: "t"}, "level": {Level: "s0:c1,c2"},
	} {
		got, err := FileLabel(o)
		want := selinux.GetEnabled() && name == "level"
		if err != nil || (got != "") != want {
			t.Errorf("%s: %q, %v; SELinux is enabled: %v", name, got, err, selinux.GetEnabled())
		}
	}
}

// TestArguments: the library receives what the options set, and nothing for what they leave open.
func TestArguments(t *testing.T) {
	for want, o := range map[string]*corev1.SELinuxOptions{
		"level:s0":                            {Level: "s0"},
		"user:u role:r type:t level:s0:c1,c2": {User: "u", Role: "r", Type: "t", Level: "s0:c1,c2"},
	} {
		if got := strings.Join(arguments(o), " "); got != want {
			t.Errorf("got %q, wanted %q", got, want)
		}
	}
}
