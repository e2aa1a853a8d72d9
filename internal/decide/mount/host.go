package mount

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// BindOptions are the options of a mount at a host path. SUID lets programs change the user, Dev lets devices be
// opened: both are off unless a Pod asks for them. The others restrict what the volume itself allows.
type BindOptions struct{ SUID, Dev, ReadOnly, NoExec, NoAtime, NoDirAtime bool }

// fields returns the options by their words in mount(8); each word has an opposite.
func (o *BindOptions) fields() map[string]*bool {
	return map[string]*bool{
		"suid": &o.SUID, "dev": &o.Dev, "ro": &o.ReadOnly, "noexec": &o.NoExec, "noatime": &o.NoAtime,
		"nodiratime": &o.NoDirAtime,
	}
}

// opposites of the words of fields.
var opposites = map[string]string{ //nolint:gochecknoglobals // a table of constants
	"nosuid": "suid", "nodev": "dev", "rw": "ro", "exec": "noexec", "atime": "noatime", "relatime": "noatime",
	"diratime": "nodiratime",
}

// HostOptions parses options as mount(8) has them, separated by commas; of two that contradict each other, the
// later one is valid.
func HostOptions(text string) (BindOptions, error) {
	if text == "" {
		return BindOptions{}, nil
	}
	var o BindOptions
	fields := o.fields()
	for word := range strings.SplitSeq(text, ",") {
		if field, ok := fields[word]; ok {
			*field = true
		} else if field, ok := fields[opposites[word]]; ok {
			*field = false
		} else {
			return BindOptions{}, fmt.Errorf("option %.80q is not supported; supported are %s", word,
				strings.Join(HostOptionWords(), ", "))
		}
	}
	return o, nil
}

// HostOptionWords are the words that HostOptions knows.
func HostOptionWords() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for word := range (&BindOptions{}).fields() {
			if !yield(word) {
				return
			}
		}
		maps.Keys(opposites)(yield)
	})
}

// String returns the options that are not the default, always in the same order: two texts mean the same if their
// options have the same string.
func (o BindOptions) String() string {
	fields := o.fields()
	return strings.Join(slices.DeleteFunc(slices.Sorted(maps.Keys(fields)), func(word string) bool {
		return !*fields[word]
	}), ",")
}

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
