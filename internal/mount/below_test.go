package mount

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMakeBelowFollowsNoLink(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{root + "/link/a", root + "/link", root + "/../x", "/elsewhere"} {
		if err := MakeBelow(root, path); !errors.Is(err, ErrNotPlain) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := MakeBelow(root, root+"/file/a"); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("made outside: %v, %v", left, err)
	}
	for range 2 {
		if err := MakeBelow(root, root+"/a/b/c"); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(root + "/a/b/c")
	if err != nil || info.Mode().Perm()&0o027 != 0 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestFree(t *testing.T) {
	var table Table
	defer table.Close()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(at("file"), nil, 0o600), os.WriteFile(at("data"), []byte("x"), 0o600), os.Mkdir(at("empty"), 0o700),
		os.MkdirAll(at("full/x"), 0o700), os.Mkdir(at("mount"), 0o700), os.Symlink(dir, at("link")),
		unix.Mkfifo(at("fifo"), 0o600),
		unix.Mount("none", at("mount"), "tmpfs", 0, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	defer func() { _ = unix.Unmount(at("mount"), 0) }()
	for _, c := range []struct {
		name   string
		device bool
		want   error
	}{
		{"nothing", false, nil},
		{"empty", false, nil},
		{"nothing", true, nil},
		{"file", true, nil},
		{"file", false, ErrNotFree},
		{"full", false, ErrNotFree},
		{"fifo", false, ErrNotFree},
		{"data", true, ErrNotFree},
		{"empty", true, ErrNotFree},
		{"mount", false, ErrOccupied},
		{"link", false, ErrNotPlain},
		{"link/x", false, ErrNotPlain},
	} {
		if err := table.CheckFree(at(c.name), c.device); !errors.Is(err, c.want) {
			t.Errorf("%s, device %v: %v, wanted %v", c.name, c.device, err, c.want)
		}
	}
}

func TestLinkAndUnlink(t *testing.T) {
	dir := t.TempDir()
	at, target := filepath.Join(dir, "link"), filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Link(target, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := Link(target+"x", at); !errors.Is(err, unix.EEXIST) {
		t.Errorf("another link over it: %v", err)
	}
	if Unlink(target) == nil {
		t.Error("a file was taken for a link")
	}
	for range 2 {
		if err := Unlink(at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(target); err != nil {
		t.Error("the target went with the link", err)
	}
}

// TestRemoveAtTheWayOfALink: a directory above that became a link leads
// nowhere.
func TestRemoveAtTheWayOfALink(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(outside, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, remove := range map[string]func(string) error{"remove": Remove, "unlink": Unlink} {
		if err := remove(filepath.Join(dir, "link", "x")); !errors.Is(err, ErrNotPlain) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "x")); err != nil {
		t.Error(err)
	}
}

// TestMakeBelowWhileParentsAreRemoved: another volume's directories are removed with their empty parents at the same
// time.
func TestMakeBelowWhileParentsAreRemoved(t *testing.T) {
	root := t.TempDir()
	parent := filepath.Join(root, "vendor")
	for range 2000 {
		if err := os.MkdirAll(parent, 0o700); err != nil {
			t.Fatal(err)
		}
		var removed sync.WaitGroup
		removed.Go(func() { _ = os.Remove(parent) })
		err := MakeBelow(root, filepath.Join(parent, "driver"))
		removed.Wait()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(parent, "driver")); err != nil {
			t.Fatal(err)
		}
	}
}
