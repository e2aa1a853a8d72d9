package datadir_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"volplane.dev/volplane/standalone/datadir"
)

func TestOpenMakesAPrivateDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	d := open(t, path)
	defer d.Close()
	err := filepath.Walk(path, func(name string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %04o, want nothing for others", name, info.Mode().Perm())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestOneHolderOnly(t *testing.T) {
	path := t.TempDir()
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	first := open(t, path)
	_, err := datadir.Open(path)
	if !errors.Is(err, datadir.ErrInUse) || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("second open: %v, want %v naming process %d", err, datadir.ErrInUse, os.Getpid())
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(t, path).Close(); err != nil {
		t.Error(err)
	}
}

func TestRelativePathBecomesAbsolute(t *testing.T) {
	t.Chdir(t.TempDir())
	d := open(t, "here")
	defer d.Close()
	if !filepath.IsAbs(d.Path) {
		t.Errorf("path %q is not absolute", d.Path)
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		format string
		mode   os.FileMode
		is     error
		says   string
	}{
		"newer format":       {"2\n", 0o700, datadir.ErrNewer, "format 2"},
		"no number":          {"something", 0o700, nil, "want a number"},
		"writable by all":    {"1\n", 0o777, datadir.ErrOpen, "chmod go-w"},
		"writable by group":  {"1\n", 0o770, datadir.ErrOpen, "chmod go-w"},
		"a shared temporary": {"1\n", 0o777 | os.ModeSticky, datadir.ErrOpen, "chmod go-w"},
	} {
		path := t.TempDir()
		if err := os.WriteFile(filepath.Join(path, "format"), []byte(c.format), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := datadir.Open(path)
		if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v; want %v saying %q", name, err, c.is, c.says)
		}
	}
}

// TestOthers: files that others own, may write to or have linked are refused with an instruction, and nothing is
// created or changed in the directory.
func TestOthers(t *testing.T) {
	const someone = 1000
	for name, c := range map[string]struct {
		prepare func(dir string) error
		is      error
		says    string
	}{
		"the directory of another user": {
			func(dir string) error { return os.Chown(dir, someone, someone) }, datadir.ErrOpen, "chown -R 0",
		},
		"keys of another user": {
			func(dir string) error { return os.Chown(filepath.Join(dir, "pki/ca.key"), someone, someone) },
			datadir.ErrOpen, "pki/ca.key belongs to the user with the id 1000",
		},
		"keys that anybody may replace": {
			func(dir string) error { return os.Chmod(filepath.Join(dir, "pki"), 0o777) }, datadir.ErrOpen, "pki (mode 0777)",
		},
		"a pool elsewhere": {
			func(dir string) error { return os.Symlink(t.TempDir(), filepath.Join(dir, "pool")) },
			datadir.ErrLink, "mount --bind",
		},
		"a lock elsewhere": {
			func(dir string) error { return os.Symlink("/nowhere", filepath.Join(dir, "lock")) }, datadir.ErrLink, "/lock is",
		},
		"backups elsewhere": {
			func(dir string) error { return os.Symlink(t.TempDir(), filepath.Join(dir, "backup")) }, nil, "",
		},
		"backups where anybody may write": {
			func(dir string) error { return os.Symlink("/tmp", filepath.Join(dir, "backup")) }, datadir.ErrOpen, "/backup",
		},
	} {
		dir := t.TempDir()
		pki := filepath.Join(dir, "pki")
		err := errors.Join(os.Chmod(dir, 0o700), os.Mkdir(pki, 0o700), os.WriteFile(filepath.Join(pki, "ca.key"), nil, 0o600),
			c.prepare(dir))
		if err != nil {
			t.Fatal(name, err)
		}
		before := names(t, dir)
		d, err := datadir.Open(dir)
		if c.is == nil {
			if err != nil || d.Close() != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %v saying %q", name, err, c.is, c.says)
		}
		if after := names(t, dir); after != before {
			t.Errorf("%s: there were %s, and are %s", name, before, after)
		}
	}
}

// TestThroughALink: the kernel shows mounts at a path without links, so they would not be found again.
func TestThroughALink(t *testing.T) {
	place := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(place, "real"), 0o700),
		os.Symlink("real", filepath.Join(place, "link")), os.Symlink("none", filepath.Join(place, "dangling"))); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"link", "link/a/b", "dangling"} {
		_, err := datadir.Open(filepath.Join(place, path))
		if !errors.Is(err, datadir.ErrLink) || !strings.Contains(err.Error(), "use its real path with --data-dir") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if made := names(t, filepath.Join(place, "real")); made != "" {
		t.Errorf("made: %s", made)
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

func open(t *testing.T, path string) *datadir.Dir {
	t.Helper()
	d, err := datadir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
