package driver

import "testing"

// What tests with a Host, which this package does not know, have in common with the others.
const (
	HostMode  = hostMode
	Ready     = ready
	MountsOne = mountsOne
	Unmounts  = unmounts
)

func Place(t *testing.T) string { t.Helper(); return place(t) }

func Install(t *testing.T, path, content string) { t.Helper(); install(t, path, content) }

func Script(root, branches string) string { return script(root, branches) }

func Eventually(t *testing.T, what string, so func() bool) { t.Helper(); eventually(t, what, so) }

func Running(pid string) bool { return running(pid) }

// Lines returns the lines of a file in a place.
func Lines(root, name string) []string { return (&bench{root: root}).lines(name) }
