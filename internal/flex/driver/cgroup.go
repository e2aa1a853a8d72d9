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

// ErrNoCgroup says that the host has no cgroup v2 in which this process can create cgroups.
var ErrNoCgroup = errors.New("no cgroup v2 to start drivers in")

// cgroupParent is the name of the parent of all drivers' cgroups.
const cgroupParent = "volplane-flex"

// Cgroup creates the cgroup of a driver's processes, outside of the cgroup of this process, and
// returns its directory for Options. Processes in it survive the end of this one. It may be
// repeated. Its errors wrap ErrNoCgroup.
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
	// Bind mounts of the hierarchy, in the directories of containers for example, have longer
	// paths.
	root := slices.MinFunc(roots, func(a, b string) int { return cmp.Or(len(a)-len(b), cmp.Compare(a, b)) })
	dir := filepath.Join(root, cgroupParent, name.Dir())
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as all directories there
		return "", fmt.Errorf("%w: %w", ErrNoCgroup, err)
	}
	return dir, nil
}
