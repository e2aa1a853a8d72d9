package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"volplane.dev/volplane/internal/decide/mount"
)

var errDisk = errors.New("disk")

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// filledDir makes a directory that cannot be removed like a file.
func filledDir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(path, "x"), nil)
}

// TestOpenFails rather than passing over a record that may say what is mounted.
func TestOpenFails(t *testing.T) {
	name := fileName("d.example^h")
	for _, c := range []struct {
		argues  string
		prepare func(t *testing.T, dir string)
	}{
		{"a file where the journal should be", func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			put(t, dir, nil)
		}},
		{"a record that cannot be read", func(t *testing.T, dir string) { filledDir(t, filepath.Join(dir, name)) }},
		{"a record that leads nowhere", func(t *testing.T, dir string) {
			if err := os.Symlink("nowhere", filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}},
		{"something in the way of the next write", func(t *testing.T, dir string) { filledDir(t, filepath.Join(dir, name+tmpSuffix)) }},
		{"no room for what makes no sense", func(t *testing.T, dir string) {
			put(t, filepath.Join(dir, name), []byte("{"))
			for n := range 1000 {
				put(t, filepath.Join(dir, quarantine, fmt.Sprintf("%s.%d", name, n)), nil)
			}
		}},
	} {
		dir := t.TempDir()
		open(t, dir, "1")
		c.prepare(t, dir)
		if j, aside, err := Open(dir, "1"); err == nil || j != nil || aside != nil {
			t.Errorf("%s: opened with %v aside, %v", c.argues, aside, err)
		}
	}
}

// TestWhatIsNoRecord is moved aside as it is; what is only long is read.
func TestWhatIsNoRecord(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	if err := j.Put(sample("h")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, fileName("d.example^h"))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	filled := func(size int) []byte { return append(whole, bytes.Repeat([]byte(" "), size-len(whole))...) }
	for _, c := range []struct {
		argues string
		data   []byte
		read   bool
	}{
		{"of no format", bytes.Replace(whole, fmt.Appendf(nil, `"format":%d`, format), []byte(`"format":0`), 1), false},
		{"of nothing", fmt.Appendf(nil, `{"format":%d}`, format), false},
		{"longer than any", filled(maxFile + 1), false},
		{"as long as one may be", filled(maxFile), true},
	} {
		put(t, path, c.data)
		again, aside := open(t, dir, "1")
		if read := again.Get("d.example^h") != nil; read != c.read || len(aside) > 0 == c.read {
			t.Errorf("%s: read %v, aside %v", c.argues, read, aside)
		}
	}
}

// TestADiskThatFails: what may not be on the disk is not what the journal says.
func TestADiskThatFails(t *testing.T) {
	old, r := sample("h"), sample("h")
	r.Stage = mount.Unstaging
	for _, c := range []struct {
		argues string
		fails  func(t *testing.T, j *Journal)
		do     func(*Journal) error
	}{
		{"a record is not written", func(t *testing.T, j *Journal) { failSync(j, false) }, func(j *Journal) error { return j.Put(r) }},
		{"the directory is not", func(t *testing.T, j *Journal) { failSync(j, true) }, func(j *Journal) error { return j.Put(r) }},
		{"nor the doubt in it", func(t *testing.T, j *Journal) { failSync(j, true); blocked(t, j.dir, r.Key()) }, func(j *Journal) error { return j.Settle(r) }},
		{"nothing is dropped", func(t *testing.T, j *Journal) { failSync(j, true) }, func(j *Journal) error { return j.Drop(r.Key()) }},
		{"the directory is gone", func(t *testing.T, j *Journal) {
			if err := os.RemoveAll(j.dir); err != nil {
				t.Fatal(err)
			}
		}, func(j *Journal) error { return j.Drop(r.Key()) }},
		{"a record cannot be removed", func(t *testing.T, j *Journal) { filledDir(t, filepath.Join(j.dir, doubtName(r.Key()))) }, func(j *Journal) error { return j.Drop(r.Key()) }},
	} {
		j, _ := open(t, t.TempDir(), "1")
		if err := j.Put(old); err != nil {
			t.Fatal(err)
		}
		c.fails(t, j)
		if err := c.do(j); err == nil {
			t.Errorf("%s: no error", c.argues)
		}
		if diff := cmp.Diff(old, j.Get(old.Key())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.argues, diff)
		}
		if left, err := filepath.Glob(filepath.Join(j.dir, "*"+tmpSuffix)); err != nil || c.argues == "a record is not written" && len(left) > 0 {
			t.Errorf("%s: left %v, %v", c.argues, left, err)
		}
	}
}

// failSync lets nothing of the directory come to the disk, or nothing of a record.
func failSync(j *Journal, directory bool) {
	j.sync = func(f *os.File) error {
		if (f.Name() == j.dir) == directory {
			return errDisk
		}
		return nil
	}
}

// TestDoubtComesAgain: a record that was written, or dropped and written, after it
// was in doubt is one like others, and is put in doubt again.
func TestDoubtComesAgain(t *testing.T) {
	for _, drop := range []bool{false, true} {
		dir := t.TempDir()
		j, _ := open(t, dir, "1")
		r := sample("h")
		for range 2 {
			if err := j.Put(r); err != nil {
				t.Fatal(err)
			}
			if all, doubtful := files(t, dir), doubts(t, dir); len(all) != 1 || len(doubtful) != 0 {
				t.Errorf("files of one record: %v, in doubt %v", all, doubtful)
			}
			blocked(t, dir, r.Key())
			if err := j.Settle(r); err != nil {
				t.Fatal(err)
			}
			unblocked(t, dir, r.Key())
			after, _ := open(t, dir, "1")
			if diff := cmp.Diff([]*mount.Record{r.Doubtful()}, after.List()); diff != "" {
				t.Fatalf("after a crash, dropped %v (-want +got):\n%s", drop, diff)
			}
			if drop {
				if err := j.Drop(r.Key()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
