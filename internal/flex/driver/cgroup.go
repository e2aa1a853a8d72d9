package driver

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
)

// ErrNoCgroup says that the host has no cgroup v2 that we may use.
var ErrNoCgroup = errors.New("no cgroup v2 to start drivers in")

// cgroupParent is the cgroup that those of all drivers are in.
const cgroupParent = "volplane-flex"

// Cgroup makes the cgroup, outside of our own, in which a driver's processes
// live, and returns its directory for Options. What a driver leaves running
// survives our end there. It may be repeated. The error is ErrNoCgroup.
func Cgroup(name decide.Name) (string, error) {
	var table mount.Table
	defer table.Close()
	points, err := table.Points()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoCgroup, err)
	}
	var roots []string
	for path, p := range points {
		if p.Type == "cgroup2" && !p.ReadOnly {
			roots = append(roots, path)
		}
	}
	if len(roots) == 0 {
		return "", ErrNoCgroup
	}
	// Binds of it, in containers' directories for example, have longer paths.
	root := slices.MinFunc(roots, func(a, b string) int { return cmp.Or(len(a)-len(b), cmp.Compare(a, b)) })
	dir := filepath.Join(root, cgroupParent, name.Dir())
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as all directories there
		return "", fmt.Errorf("%w: %w", ErrNoCgroup, err)
	}
	return dir, nil
}
