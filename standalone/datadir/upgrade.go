package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"volplane.dev/volplane/internal/durable"
)

// versionFile holds the version of the program that has used the directory last.
const versionFile = "version"

// mostVersion bounds what is read of it.
const mostVersion = 1 << 10

// upgrade ends the names of backups before upgrades, of which so many are kept.
const (
	upgrade = "upgrade"
	keep    = 3
)

// Unknown is the version of a program that did not write it down.
const Unknown = "an older version"

// Upgrade makes the directory one of this version. When another one has used it,
// and there is something to lose, a backup is made first, and its path and that
// version are returned.
func (d *Dir) Upgrade(version string, objects bool, now time.Time) (backup, from string, err error) {
	path := filepath.Join(d.Path, versionFile)
	data, err := durable.ReadFile(path, mostVersion)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("version of the data directory: %w", err)
	}
	from = strings.TrimSpace(string(data))
	if from == version {
		return "", "", nil
	}
	if from == "" {
		from = Unknown
	}
	if objects {
		if backup, err = d.Backup(now, upgrade); err != nil {
			return "", "", err
		}
		d.prune()
	}
	return backup, from, durable.WriteFile(path, []byte(version+"\n"))
}

// prune deletes old backups of upgrades, and no others.
func (d *Dir) prune() {
	all, err := filepath.Glob(filepath.Join(d.Path, Backups, "*-"+upgrade))
	if err != nil {
		return
	}
	slices.Sort(all)
	for _, path := range all[:max(0, len(all)-keep)] {
		_ = os.RemoveAll(path)
	}
}
