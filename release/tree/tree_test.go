package tree_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/release/tree"
)

func example() tree.Tree {
	return tree.Tree{
		tree.Program("usr/bin/b", []byte("program")),
		tree.Text("usr/a", "text"),
		tree.Link("usr/bin/a", "b"),
		tree.Directory("etc/empty"),
	}
}

// TestTar: an archive contains all files and their directories, and nothing of the machine.
func TestTar(t *testing.T) {
	data, err := example().TarGz(time.Unix(1_700_000_000, 0))
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if z.Name != "" || !z.ModTime.IsZero() {
		t.Errorf("the archive has the name %q and the time %v", z.Name, z.ModTime)
	}
	var got []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%c %04o %d:%d %s%s %d %s", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Uname, h.Gname,
			h.ModTime.Unix(), h.Name))
	}
	want := []string{
		"5 0755 0:0  1700000000 etc/",
		"5 0755 0:0  1700000000 etc/empty/",
		"5 0755 0:0  1700000000 usr/",
		"0 0644 0:0  1700000000 usr/a",
		"5 0755 0:0  1700000000 usr/bin/",
		"2 0777 0:0  1700000000 usr/bin/a",
		"0 0755 0:0  1700000000 usr/bin/b",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the archive has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestSameBytes: the order in which files were added makes no difference.
func TestSameBytes(t *testing.T) {
	when := time.Unix(1, 0)
	other := example()
	slices.Reverse(other)
	a, err := example().TarGz(when)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := other.TarGz(when); err != nil || !bytes.Equal(a, b) {
		t.Errorf("another order gives other bytes, error %v", err)
	}
}

// TestWrite: the written files have the modes of the tree, whatever the umask of the process.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := example().Write(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"usr/bin/b": 0o755, "usr/a": 0o644, "etc/empty": fs.ModeDir | 0o755} {
		if s, err := os.Stat(filepath.Join(dir, name)); err != nil || s.Mode() != want {
			t.Errorf("%s: %v, error %v, want %v", name, s.Mode(), err, want)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "usr/bin/a")); to != "b" {
		t.Errorf("the link leads to %q, error %v", to, err)
	}
}

// TestRefused: trees that no directory can hold are errors.
func TestRefused(t *testing.T) {
	for want, files := range map[string]tree.Tree{
		"is not a path":   {tree.Text("../a", "")},
		"exists twice":    {tree.Text("a", ""), tree.Text("a", "")},
		"not a directory": {tree.Text("a", ""), tree.Text("a/b", "")},
	} {
		if _, err := files.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one with %q", files, err, want)
		}
	}
}
