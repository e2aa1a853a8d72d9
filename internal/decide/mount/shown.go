package mount

import (
	"slices"
	"strings"
)

// Shown is a directory of the host at which a Pod wants its volume.
type Shown struct {
	Path, Pod string
	// Mounted says that something is mounted there.
	Mounted bool
}

// IsAbove says whether a directory of the host is above a path.
func IsAbove(dir, path string) bool { return strings.HasPrefix(path, dir+"/") }

// HideLater returns those of the directories that are above a path and have nothing mounted yet. A later mount there
// hides an earlier one at the path, and writes to the path go to the wrong volume.
func HideLater(path string, all []Shown) []Shown {
	return slices.DeleteFunc(slices.Clone(all), func(s Shown) bool {
		return s.Mounted || !IsAbove(s.Path, path)
	})
}
