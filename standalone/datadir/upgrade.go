package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"volplane.dev/volplane/internal/durable"
)

// versionFile holds the version of the program that has used the directory last.
const versionFile = "version"

// mostVersion limits the size of the version file.
const mostVersion = 1 << 10

// Unknown is used for a version that did not write the file.
const Unknown = "an older version"

// Upgrade records the version of this program. If another version has used the directory,
// Upgrade first calls save, and returns that version.
func (d *Dir) Upgrade(version string, save func() error) (from string, err error) {
	path := filepath.Join(d.Path, versionFile)
	data, err := durable.ReadFile(path, mostVersion)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("version of the data directory: %w", err)
	}
	from = strings.TrimSpace(string(data))
	if from == version {
		return "", nil
	}
	if from == "" {
		from = Unknown
	}
	if err := save(); err != nil {
		return "", err
	}
	return from, durable.WriteFile(path, []byte(version+"\n"))
}
