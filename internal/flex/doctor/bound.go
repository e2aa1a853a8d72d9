package doctor

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/mount"
)

// through calls use with a directory at which a mounted volume is bound, with all mounts below it,
// as a Pod has it.
func (x *exam) through(v vol, use func(dir string) error) error {
	dir := filepath.Join(x.root, "pod")
	if _, err := mount.MakeDir(dir); err != nil {
		return err
	}
	err := mount.Bind(v.dir, dir, 0)
	if err == nil {
		err = errors.Join(use(dir), mount.Unmount(dir))
	}
	return errors.Join(err, mount.Remove(dir))
}

// seen checks whether a Pod sees all mounts of the volume: otherwise it would write to the
// directories below them.
func (x *exam) seen(v vol) {
	var missing []string
	err := x.through(v, func(dir string) error {
		table := x.table()
		for _, p := range within(table, v.dir) {
			if len(at(table, dir+strings.TrimPrefix(p.Path, v.dir))) == 0 {
				missing = append(missing, p.Path)
			}
		}
		return nil
	})
	reason := ""
	switch {
	case err != nil:
		reason = "the host cannot show the volume to a pod: " + err.Error()
	case len(missing) > 0:
		slices.Sort(missing)
		reason = "a pod does not see what is mounted at " + missing[0]
	}
	x.answer(question{
		"seen-by-pods", both(), "mount nothing unbindable at the directory or below it",
		"a pod sees all that is mounted, at the directory and below it",
	}, reason)
}
