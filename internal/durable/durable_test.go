package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
)

const most = 100

func TestWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	// What a crash left of an earlier write, longer than the next.
	if err := os.WriteFile(path+durable.Draft, []byte("an unfinished write of long ago"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one", "two", ""} {
		if err := durable.WriteFile(path, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := durable.ReadFile(path, most); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	onlyFile(t, path)
}

func TestWrittenValue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := durable.WriteJSON(path, []int{1, 2}); err != nil {
		t.Fatal(err)
	}
	var got []int
	if err := durable.ReadJSON(path, most, &got); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if err := durable.ReadJSON(path, 3, &got); err == nil {
		t.Error("part of a value was read as a whole")
	}
	if err := durable.WriteJSON(path, func() {}); err == nil {
		t.Error("a function was written")
	}
	onlyFile(t, path)
}

// TestNotWritten: a write that fails leaves the previous file, and nothing else.
func TestNotWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "inside"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(path, []byte("new")); err == nil {
		t.Error("a directory was replaced")
	}
	onlyFile(t, path)
	if err := durable.WriteFile(filepath.Join(dir, "absent", "file"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// TestInThePlace: what is in the place of a file is neither followed nor waited
// for.
func TestInThePlace(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("other's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, path+durable.Draft); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(path, []byte("ours")); !errors.Is(err, unix.ELOOP) {
		t.Errorf("the draft is a link: %v", err)
	}
	if got, err := os.ReadFile(other); err != nil || string(got) != "other's" {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.Symlink(other, path); err != nil {
		t.Fatal(err)
	}
	if _, err := durable.ReadFile(path, most); !errors.Is(err, unix.ELOOP) {
		t.Errorf("the file is a link: %v", err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := durable.ReadFile(pipe, most); err != nil || len(got) > 0 {
		t.Errorf("a pipe that nobody writes: %q, %v", got, err)
	}
}

func TestRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := durable.WriteFile(path, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := durable.Remove(path); err != nil {
			t.Error(err)
		}
	}
	if err := durable.Remove(filepath.Dir(path)); err != nil {
		t.Errorf("nothing is left: %v", err)
	}
}

func onlyFile(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("there are %v, %v", entries, err)
	}
}
