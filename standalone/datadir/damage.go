package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Backups is the folder of a data directory in which volplane keeps backups by
// itself.
const Backups = "backup"

// told is how many backups are named when one is needed.
const told = 3

// Used returns a file or folder that says that a control plane has run over the
// directory, and has therefore had objects; "" when there is none.
func (d *Dir) Used() string {
	for _, path := range []string{"admin.kubeconfig", "node/journal/*", "pool/volumes/*"} {
		if found, err := filepath.Glob(filepath.Join(d.Path, path)); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// Damaged returns the error that tells on one screen what is damaged, what is
// not, and what to type. The cause is what errors.Is finds.
func (d *Dir) Damaged(what string, cause error) error {
	return &damage{dir: d.Path, what: what, cause: cause}
}

type damage struct {
	dir, what string
	cause     error
}

// Unwrap returns the cause.
func (d *damage) Unwrap() error { return d.cause }

// Error is the screen.
func (d *damage) Error() string {
	var out strings.Builder
	fmt.Fprintf(&out, `the control plane cannot start over %s: %v

  damaged  %s
  safe     the volumes' data; nothing was changed, and what is mounted stays mounted
  backups  `, d.dir, d.cause, d.what)
	restore := "FILE"
	if all := d.backups(); len(all) > 0 {
		fmt.Fprintf(&out, "%s\n", strings.Join(all, "\n           "))
		restore = all[0]
	} else {
		fmt.Fprintf(&out, "none in %s; name your own one below\n", filepath.Join(d.dir, Backups))
	}
	fmt.Fprintf(&out, `
Go on with
  volplane restore %s --data-dir %s
Do not delete anything in %s before that. Without a backup, repair what is named above, or begin anew in another
directory with --data-dir; this one keeps the data of the volumes, in pool.`, restore, d.dir, d.dir)
	return out.String()
}

// backups returns the newest backups, newest first: their names begin with
// their time.
func (d *damage) backups() []string {
	entries, err := os.ReadDir(filepath.Join(d.dir, Backups))
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range slices.Backward(entries) {
		if !strings.HasPrefix(e.Name(), ".") && len(all) < told {
			all = append(all, filepath.Join(d.dir, Backups, e.Name()))
		}
	}
	return all
}
