package mount

import (
	"strings"

	"volplane.dev/volplane/internal/volume"
)

// State is the state of a mounted volume, according to its driver and its node.
type State struct {
	// DriverProblems is what is wrong with it according to the driver; empty if nothing is.
	DriverProblems string
	// ReadOnly means that its filesystem no longer accepts writes, although the mount is writable.
	ReadOnly bool
	// Total and Available are its bytes, Inodes and InodesAvailable its inodes; a total of 0 means that they are unknown.
	Total, Available, Inodes, InodesAvailable int64
}

// Less than this does not count as room: a filesystem keeps some for itself.
const (
	fullShare = 100
	fullBytes = 16 << 20
)

// full says whether the volume has practically no space left.
func (s State) full() bool {
	return s.Total > 0 && s.Available <= min(s.Total/fullShare, fullBytes)
}

// Problems returns what is wrong with a volume, empty if it is healthy, and who acts first. The text changes only if
// the problems do.
func (s State) Problems(driver, node string) (text string, next volume.Actor) {
	var all []string
	add := func(what string, who volume.Actor) {
		all = append(all, what)
		if next.IsZero() {
			next = who
		}
	}
	if s.ReadOnly {
		add("its filesystem has become read-only, because the kernel found an error in it or its device does "+
			"not work (see the kernel's log): nothing more is written; after its Pods have ended it can be checked",
			volume.Administrator(node))
	}
	if s.DriverProblems != "" {
		add(s.DriverProblems, volume.Driver(driver))
	}
	if s.full() {
		add("it is full: delete something, or have its claim ask for more", volume.User())
	}
	if s.Inodes > 0 && s.InodesAvailable == 0 {
		add("it has no inodes left: delete some files", volume.User())
	}
	return strings.Join(all, "; "), next
}
