package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Backups is the directory of automatic backups in a data directory.
const Backups = "backup"

// maxListed is how many backups the error about damage lists.
const maxListed = 3

// Used returns a file or directory that proves that a control plane has used the data
// directory, and therefore had objects; "" if there is none.
func (d *Dir) Used() string {
	for _, path := range []string{"admin.kubeconfig", "node/journal/*", "pool/volumes/*"} {
		if found, err := filepath.Glob(filepath.Join(d.Path, path)); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// Damaged returns an error that lists what is damaged, what is safe, and which command to
// run. It wraps the cause.
func (d *Dir) Damaged(what string, cause error) error {
	return &damage{dir: d.Path, what: what, cause: cause}
}

type damage struct {
	dir, what string
	cause     error
}

// Unwrap returns the cause.
func (d *damage) Unwrap() error { return d.cause }

// Error returns the text, which has several lines.
func (d *damage) Error() string {
	var out strings.Builder
	fmt.Fprintf(&out, `the control plane cannot start with %s: %v

  damaged  %s
  safe     the volumes' data; nothing was changed, and what is mounted stays mounted
  backups  `, d.dir, d.cause, d.what)
	restore := "FILE"
	if all := d.backups(); len(all) > 0 {
		fmt.Fprintf(&out, "%s\n", strings.Join(all, "\n           "))
		restore = all[0]
	} else {
		fmt.Fprintf(&out, "none in %s; use one from elsewhere below\n", filepath.Join(d.dir, Backups))
	}
	fmt.Fprintf(&out, `
Next step:
  volplane restore %s --data-dir %s
Do not delete anything in %s before that. Without a backup, repair what is damaged, or start from scratch with another
directory and --data-dir; this directory keeps the data of the volumes, in pool.`, restore, d.dir, d.dir)
	return out.String()
}

// backups returns the newest backups, newest first; their names begin with their time.
func (d *damage) backups() []string {
	entries, err := os.ReadDir(filepath.Join(d.dir, Backups))
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range slices.Backward(entries) {
		if !strings.HasPrefix(e.Name(), ".") && len(all) < maxListed {
			all = append(all, filepath.Join(d.dir, Backups, e.Name()))
		}
	}
	return all
}
