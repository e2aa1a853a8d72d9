package selinux

import (
	"fmt"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	corev1 "k8s.io/api/core/v1"
)

// FileLabel returns the label of files that a container with these options may use. Omitted options have the host's
// default, as in a container runtime. It is empty on a host without SELinux, and for options without a level: the
// runtime chooses one for each container, which is not known elsewhere.
func FileLabel(o *corev1.SELinuxOptions) (string, error) {
	if o == nil || o.Level == "" || !selinux.GetEnabled() {
		return "", nil
	}
	process, file, err := label.InitLabels(arguments(o))
	if err != nil {
		return "", fmt.Errorf("SELinux label for level %.100q: %w", o.Level, err)
	}
	// The library does not give out a level twice, which only a runtime needs.
	selinux.ReleaseLabel(process)
	return file, nil
}

// arguments returns options in the library's syntax.
func arguments(o *corev1.SELinuxOptions) []string {
	var out []string
	for _, part := range []struct{ name, value string }{
		{"user", o.User}, {"role", o.Role}, {"type", o.Type}, {"level", o.Level},
	} {
		if part.value != "" {
			out = append(out, part.name+":"+part.value)
		}
	}
	return out
}
