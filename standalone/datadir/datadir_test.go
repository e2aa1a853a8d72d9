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

func open(t *testing.T, path string) *datadir.Dir {
	t.Helper()
	d, err := datadir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
