package etcd_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"volplane.dev/volplane/standalone/etcd"
)

// stored makes a directory in which etcd has stored something, in its state after an ordinary stop and, as a copy,
// after a kill.
func stored(t *testing.T) (stopped, killed string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	stopped, killed = filepath.Join(dir, "s"), filepath.Join(dir, "k")
	s, err := etcd.Start(t.Context(), etcd.Options{Dir: stopped})
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, s)
	for i := range 200 {
		if _, err := c.Put(t.Context(), fmt.Sprint("/registry/", i), strings.Repeat("x", 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	clone(t, stopped, killed)
	s.Stop()
	return stopped, killed
}

func clone(t *testing.T, from, to string) {
	t.Helper()
	if err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		at := to + strings.TrimPrefix(path, from)
		switch {
		case err != nil:
			return err
		case e.IsDir():
			return os.MkdirAll(at, 0o700)
		case !e.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(at, data, 0o600)
	}); err != nil {
		t.Fatal(err)
	}
}

// state is the content of all files below a directory.
func state(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(&out, "%s %d %x\n", path, len(data), sha256.Sum256(data))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

const db = "member/member/snap/db"

// log returns the newest file of a log and how much of it is used.
func log(t *testing.T, dir string) (path string, used int64) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "member/member/wal/*.wal"))
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	data, err := os.ReadFile(all[len(all)-1])
	if err != nil {
		t.Fatal(err)
	}
	return all[len(all)-1], int64(len(strings.TrimRight(string(data), "\x00")))
}

// inEntry returns a position within the value that was stored under the key. A change there is found by the record's
// checksum; a change of a record's length could also look like the end of the log.
func inEntry(t *testing.T, path, key string) int64 {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(data, []byte(key))
	if at < 0 {
		t.Fatalf("%s has no entry of %s", path, key)
	}
	return int64(at + len(key) + 100)
}

func patch(t *testing.T, path string, at int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(data, at); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// checkCase is a change of a directory, and the resulting error.
type checkCase struct {
	of     string
	change func(t *testing.T, dir string)
	// says is part of the error; empty for success.
	says   string
	exists bool
}

// TestCheck: every damage is found and reported with its file, and the check changes nothing; what a kill leaves behind
// is not damage.
func TestCheck(t *testing.T) {
	stopped, killed := stored(t)
	noise := make([]byte, 200<<10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	for name, c := range map[string]checkCase{
		"stopped": {of: stopped, exists: true},
		"killed":  {of: killed, exists: true},
		"killed in the middle of a record": {of: killed, exists: true, change: func(t *testing.T, dir string) {
			path, used := log(t, dir)
			patch(t, path, (used+7)&^7, []byte{0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 2, 3})
		}},
		"nothing": {of: stopped, change: func(t *testing.T, dir string) { remove(t, dir) }},
		"killed before the log was made": {of: stopped, change: func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "member/member/wal"))
			truncate(t, filepath.Join(dir, db), 0)
		}},
		"half a log": {stopped, func(t *testing.T, dir string) {
			path, used := log(t, dir)
			truncate(t, path, used/2)
		}, "ends with entry", true},
		"the last entries of a log": {stopped, func(t *testing.T, dir string) {
			path, used := log(t, dir)
			truncate(t, path, used-3000)
		}, "the control plane has confirmed", true},
		"an empty log": {stopped, func(t *testing.T, dir string) {
			path, _ := log(t, dir)
			truncate(t, path, 0)
		}, "has no beginning", true},
		"a bit of a log": {stopped, func(t *testing.T, dir string) {
			path, _ := log(t, dir)
			patch(t, path, inEntry(t, path, "/registry/100"), []byte("!"))
		}, ".wal at byte", true},
		"no log": {
			stopped, func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "member/member/wal")) },
			"is missing, but its database", true,
		},
		"no database": {
			stopped, func(t *testing.T, dir string) { remove(t, filepath.Join(dir, db)) }, "is missing, but its log", true,
		},
		"an empty one": {
			stopped, func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, db), 0) }, "is empty", true,
		},
		"some bytes": {stopped, func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, db), 100) }, db, true},
		"two pages": {
			stopped, func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, db), 8192) }, "bytes long", true,
		},
		"half of it": {
			stopped, func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, db), 40960) }, "bytes long", true,
		},
		"other pages": {
			stopped, func(t *testing.T, dir string) { patch(t, filepath.Join(dir, db), 8192, noise) }, "damaged", true,
		},
		"a value of something else": {
			stopped, func(t *testing.T, dir string) { spoil(t, filepath.Join(dir, db)) }, "the value at revision 1000", true,
		},
		"keys in disorder": {stopped, disorder, "follows", true},
		"a file of log":    {stopped, func(t *testing.T, dir string) { renamed(t, dir) }, "are missing", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "etcd")
			clone(t, c.of, dir)
			if c.change != nil {
				c.change(t, dir)
			}
			before := ""
			if _, err := os.Stat(dir); err == nil {
				before = state(t, dir)
			}
			found, err := etcd.Check(dir)
			if found.Exists != c.exists || errors.Is(err, etcd.ErrDamaged) != (c.says != "") ||
				err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("exists %v, %v; want %v and %q", found, err, c.exists, c.says)
			}
			if before != "" && state(t, dir) != before {
				t.Error("the check has changed something")
			}
		})
	}
}

// renamed makes the log begin later, as if its first file were gone.
func renamed(t *testing.T, dir string) {
	t.Helper()
	path, _ := log(t, dir)
	if err := os.Rename(path, filepath.Join(filepath.Dir(path), "0000000000000001-0000000000000064.wal")); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// disorder gives the key of an early revision that of a late one.
func disorder(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, db)
	key := func(revision uint64) []byte { return append(binary.BigEndian.AppendUint64(nil, revision), '_') }
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, bytes.ReplaceAll(data, key(50), key(5000)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// spoil puts a value into a file that is not etcd's database.
func spoil(t *testing.T, path string) {
	t.Helper()
	b, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Update(func(tx *bolt.Tx) error {
		key := append(binary.BigEndian.AppendUint64(nil, 1000), '_')
		return tx.Bucket([]byte("key")).Put(binary.BigEndian.AppendUint64(key, 0), []byte("no value of etcd"))
	}); err != nil {
		t.Fatal(err)
	}
}

// TestStartEnds: a start over files for which etcd waits forever ends with its context, and one over files with which
// etcd fails returns the cause without waiting for the context.
func TestStartEnds(t *testing.T) {
	stopped, _ := stored(t)
	for name, change := range map[string]func(dir string){
		"waits": func(dir string) {
			path, used := log(t, dir)
			truncate(t, path, used-3000)
		},
		"dies": func(dir string) { spoil(t, filepath.Join(dir, db)) },
		"gives up": func(dir string) {
			path, _ := log(t, dir)
			patch(t, path, inEntry(t, path, "/registry/100"), []byte("!"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			parent, err := os.MkdirTemp("", "etcd-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(parent) })
			dir := filepath.Join(parent, "e")
			clone(t, stopped, dir)
			change(dir)
			patience := time.Minute
			if name == "waits" {
				patience = 2 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err = etcd.Start(ctx, etcd.Options{Dir: dir})
			if err == nil || errors.Is(err, context.DeadlineExceeded) != (name == "waits") {
				t.Error(err)
			}
			t.Log(err)
		})
	}
}
