package install

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
)

//go:embed skeleton/driver.sh
var skeletonDriver string

//go:embed skeleton/test.sh
var skeletonTest string

// Skeleton writes a working example of a driver, and its test, into a directory, which is created.
// A directory that is not empty is an error. It returns the paths of the files.
func Skeleton(name decide.Name, dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- part of somebody's source tree
		return nil, fmt.Errorf("write driver: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fs.ErrExist
	}
	if err != nil {
		return nil, fmt.Errorf("write driver: directory %s is not empty: %w", dir, err)
	}
	words := strings.NewReplacer("example.com~skeleton", name.Dir(), "skeleton", name.Driver)
	paths := []string{filepath.Join(dir, name.Driver), filepath.Join(dir, "test.sh")}
	for i, text := range []string{skeletonDriver, skeletonTest} {
		// #nosec G306 -- it is there to be executed
		err = errors.Join(err, os.WriteFile(paths[i], []byte(words.Replace(text)), 0o755))
	}
	if err != nil {
		return nil, fmt.Errorf("write driver: %w", err)
	}
	return paths, nil
}
