package datadir_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"volplane.dev/volplane/standalone/datadir"
)

// TestUpgrade: the data of another version are saved before they are changed, once; without that nothing is changed.
func TestUpgrade(t *testing.T) {
	d := open(t, filepath.Join(t.TempDir(), "d"))
	defer d.Close()
	saved := 0
	save := func() error { saved++; return nil }
	refuse := func() error { return os.ErrPermission }
	for _, step := range []struct {
		version string
		save    func() error
		from    string
		saved   int
	}{
		{"v1", refuse, "", 0},
		{"v1", save, datadir.Unknown, 1},
		{"v1", save, "", 1},
		{"v2", refuse, "", 1},
		{"v2", save, "v1", 2},
	} {
		from, err := d.Upgrade(step.version, step.save)
		if refused := errors.Is(err, os.ErrPermission); from != step.from || saved != step.saved || !refused && err != nil {
			t.Errorf("%+v: from %q, %d saved, %v", step, from, saved, err)
		}
	}
}
