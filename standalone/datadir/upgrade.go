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

// mostVersion bounds what is read of it.
const mostVersion = 1 << 10

// Unknown is the version of a program that did not write it down.
const Unknown = "an older version"

// Upgrade makes the directory one of this version. When another one has used it,
// save is called before that is written down, and that version is returned.
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
