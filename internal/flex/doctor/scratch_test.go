package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemoveTreeNeverEntersAMount, a bind of the same file system included, and
// follows no link.
func TestRemoveTreeNeverEntersAMount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tree, data := filepath.Join(dir, "tree"), filepath.Join(dir, "data")
	at := filepath.Join(tree, "a/mounted")
	file := filepath.Join(data, "file")
	if err := errors.Join(
		os.MkdirAll(at, 0o700), os.Mkdir(data, 0o700), os.WriteFile(file, []byte("data"), 0o600),
		os.Symlink(data, filepath.Join(tree, "link")), unix.Mount(data, at, "", unix.MS_BIND, ""),
	); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(at, 0) }()
	if err := removeTree(tree); !errors.Is(err, unix.EXDEV) {
		t.Errorf("a tree with a mount: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatal("what was mounted is gone")
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := removeTree(tree); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(tree); !os.IsNotExist(err) {
		t.Error("the tree is still there")
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatal("what a link led to is gone")
	}
}

// TestLocate: a path or a name.
func TestLocate(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string][2]string{
		"/x/example.com~lofs/lofs": {"/x/example.com~lofs/lofs", "example.com/lofs"},
		"/x/lofs":                  {"/x/lofs", "lofs"},
		"/x/other~lofs/fs":         {"/x/other~lofs/fs", "fs"},
		"example.com/lofs":         {"/plugins/example.com~lofs/lofs", "example.com/lofs"},
		"lofs":                     {"/plugins/lofs/lofs", "lofs"},
		"/x/lo fs":                 {},
		"Example.com/lofs":         {},
		"example.com/../lofs":      {},
		"":                         {},
	} {
		path, name, err := Locate(subject, "/plugins")
		if want[0] == "" {
			if err == nil {
				t.Errorf("%q: %s", subject, path)
			}
			continue
		}
		if err != nil || path != want[0] || name.String() != want[1] {
			t.Errorf("%q: %s %s %v", subject, path, name, err)
		}
	}
}
