package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/durable"
)

const (
	// driversDir is the directory of the files about CSI drivers.
	driversDir = "drivers.d"
	// maxDriver limits the size of a file about a driver; a larger file is not one.
	maxDriver = 64 << 10
)

func inDrivers(path string) bool {
	return path == driversDir || strings.HasPrefix(path, driversDir+"/")
}

// describesDriver says whether a file in driversDir may describe a driver: users may keep other files there.
func describesDriver(path string, size int64) bool {
	ext := filepath.Ext(path)
	return filepath.Dir(path) == driversDir && (ext == ".yaml" || ext == ".yml") && size <= maxDriver &&
		!strings.HasPrefix(filepath.Base(path), ".")
}

// addDrivers moves the files about drivers from work to dir, except those of drivers for which dir has a file: the
// host's current programs stay unchanged, because the end of a program may end mounts.
func addDrivers(dir, work string) error {
	from, to := filepath.Join(work, driversDir), filepath.Join(dir, driversDir)
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	there, err := os.ReadDir(to)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	name := func(e fs.DirEntry) string { return strings.TrimSuffix(e.Name(), filepath.Ext(e.Name())) }
	for _, e := range entries {
		if slices.ContainsFunc(there, func(other fs.DirEntry) bool { return name(other) == name(e) }) {
			continue
		}
		if err := os.Rename(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return fmt.Errorf("restore: %w; run it again", err)
		}
	}
	return errors.Join(durable.Sync(to), os.RemoveAll(from))
}
