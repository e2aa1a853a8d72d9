package drivers

import (
	"cmp"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// maxNamed bounds the number of names that a message suggests.
const maxNamed = 5

// Nearest orders names by their distance from name, and then alphabetically.
func Nearest(name string, names []string) []string {
	return slices.SortedFunc(slices.Values(names), func(a, b string) int {
		return cmp.Or(cmp.Compare(distance(name, a), distance(name, b)), cmp.Compare(a, b))
	})
}

// Alike returns the nearest of the names if name may be a misspelling of it; otherwise "".
func Alike(name string, names []string) string {
	near := Nearest(name, names)
	if len(near) == 0 || distance(name, near[0]) > max(1, len(name)/4) {
		return ""
	}
	return near[0]
}

// distance returns the Levenshtein distance of two texts.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Nowhere returns the reason of a driver that has not registered on any node.
func Nowhere(view cluster.View, driver string) volume.Because {
	return OrMeant(view, driver, volume.Say(volume.ReasonDriverMissing, volume.Driver(driver),
		"driver "+driver+" has not registered"))
}

// OrMeant adds the names of registered drivers to the reason of one that has not registered: the one
// that may be meant, or else several.
func OrMeant(view cluster.View, driver string, b volume.Because) volume.Because {
	var names []string
	for _, n := range view.CSINodes.List() {
		for _, d := range n.Spec.Drivers {
			if !slices.Contains(names, d.Name) {
				names = append(names, d.Name)
			}
		}
	}
	meant, near := Alike(driver, names), Nearest(driver, names)
	switch {
	case meant != "":
		b.Message, b.Next = b.Message+"; driver "+meant+" has, and may be meant", volume.User()
	case len(near) > maxNamed:
		b.Message += "; registered are " + strings.Join(near[:maxNamed], ", ") + " and others"
	case len(near) > 0:
		b.Message += "; registered: " + strings.Join(near, ", ")
	}
	return b
}
