package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
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

	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/etcd"
	"volplane.dev/volplane/standalone/external"
)

// small returns a data directory with an etcd that has run, and a backup of it.
func small(t *testing.T) (dir, file string) {
	t.Helper()
	above, err := os.MkdirTemp("", "bk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(above) })
	dir = filepath.Join(above, "d")
	for name, text := range map[string]string{
		"format": "1\n", "pki/ca.key": "key", "pki/deep/ca.crt": "crt", "pki/x.tmp": "draft", "pool/data": "data",
		"drivers.d/a.yaml": "a", "drivers.d/b.yml": "b", "drivers.d/.c.yaml": "hidden", "drivers.d/notes": "no driver",
		"drivers.d/old/d.yaml": "below", "drivers.d/huge.yaml": strings.Repeat("x", maxFile+1),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := etcd.Start(t.Context(), etcd.Options{Dir: filepath.Join(dir, "etcd"), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "backup")
	_, err = SaveRunning(t.Context(), Options{DataDir: dir, Version: "v", Reason: "test"}, file)
	if s.Stop(); err != nil {
		t.Fatal(err)
	}
	return dir, file
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// tree returns the files below a directory.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestDriversAreRestored: a driver whose file is missing gets it back, and an existing file stays.
func TestDriversAreRestored(t *testing.T) {
	_, file := small(t)
	dir := filepath.Join(t.TempDir(), "d")
	drivers := filepath.Join(dir, driversDir)
	now := time.Now()
	for range 2 { // It may be repeated.
		now = now.Add(time.Hour)
		r, err := Restore(t.Context(), file, dir, external.Options{}, now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(r.Replaced, driversDir)); r.Replaced != "" && err == nil {
			t.Error("the files of drivers were replaced")
		}
		if got := tree(t, drivers); !slices.Equal(got, []string{"a.yaml", "b.yml"}) {
			t.Errorf("%v", got)
		}
	}
	if st, err := os.Stat(filepath.Join(drivers, "a.yaml")); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	write := func(name string) error { return os.WriteFile(filepath.Join(drivers, name), []byte("now"), 0o600) }
	if err := errors.Join(os.Remove(filepath.Join(drivers, "b.yml")), write("b.yaml"), write("e.yaml"),
		os.Remove(filepath.Join(drivers, "a.yaml"))); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), file, dir, external.Options{}, now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, drivers); !slices.Equal(got, []string{"a.yaml", "b.yaml", "e.yaml"}) {
		t.Errorf("%v", got)
	}
	if got := string(read(t, filepath.Join(drivers, "b.yaml"))); got != "now" {
		t.Errorf("%q", got)
	}
}

// TestWhatIsKept: keys, objects and the files of drivers, and nothing of the volumes.
func TestWhatIsKept(t *testing.T) {
	_, file := small(t)
	into := t.TempDir()
	m, err := unpack(file, into)
	if err != nil {
		t.Fatal(err)
	}
	if got := tree(t, into); len(m.Sums) != len(got) || !slices.Equal(got, []string{
		"drivers.d/a.yaml", "drivers.d/b.yml", "etcd.snapshot", "format", "pki/ca.key", "pki/deep/ca.crt",
	}) {
		t.Errorf("%v, manifest %v", got, m.Sums)
	}
}

// TestDamagedBackup: a truncated or changed backup is refused, and the target directory stays unchanged.
func TestDamagedBackup(t *testing.T) {
	dir, file := small(t)
	whole := read(t, file)
	bad := filepath.Join(t.TempDir(), "bad")
	before := tree(t, dir)
	try := func(what string, at int, data []byte) {
		t.Helper()
		if err := os.WriteFile(bad, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(t.Context(), bad, dir, external.Options{}, time.Now()); !errors.Is(err, ErrBroken) {
			t.Errorf("%s at %d of %d: %v", what, at, len(whole), err)
		}
	}
	for i := range 20 {
		at := len(whole) * i / 20
		try("cut off", at, whole[:at])
		try("changed", at, damaged(whole, max(at, 10)))
	}
	if got := slices.DeleteFunc(tree(t, dir),
		func(name string) bool { return name == "lock" }); !slices.Equal(got, before) {
		t.Errorf("the directory has %v, had %v", got, before)
	}
}

// damaged returns a backup with one bit changed at an offset, or at the first later one at which that changes the
// content of the backup: in a compressed run of zeros, for example, it may not.
func damaged(whole []byte, at int) []byte {
	content := func(backup []byte) ([]byte, error) {
		z, err := gzip.NewReader(bytes.NewReader(backup))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(z)
	}
	right, _ := content(whole)
	for {
		out := bytes.Clone(whole)
		out[at] ^= 0x40
		if held, err := content(out); err != nil || !bytes.Equal(held, right) {
			return out
		}
		at++
	}
}

// TestHostileBackup: names that lead elsewhere, links, devices, duplicate names.
func TestHostileBackup(t *testing.T) {
	dir, _ := small(t)
	file := filepath.Join(t.TempDir(), "hostile")
	for name, headers := range map[string][]tar.Header{
		"above":           {{Name: "pki/../../x", Typeflag: tar.TypeReg}},
		"absolute":        {{Name: "/etc/passwd", Typeflag: tar.TypeReg}},
		"other":           {{Name: "pool/data", Typeflag: tar.TypeReg}},
		"etcd itself":     {{Name: "etcd/member/x", Typeflag: tar.TypeReg}},
		"link":            {{Name: "pki/ca.key", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"}},
		"hard link":       {{Name: "pki/ca.key", Typeflag: tar.TypeLink, Linkname: "/etc/shadow"}},
		"device":          {{Name: "pki/null", Typeflag: tar.TypeChar}},
		"twice":           {{Name: "pki/a", Typeflag: tar.TypeReg}, {Name: "pki/a", Typeflag: tar.TypeReg}},
		"file and folder": {{Name: "pki", Typeflag: tar.TypeReg}, {Name: "pki/a", Typeflag: tar.TypeReg}},
		"huge":            {{Name: "pki/a", Typeflag: tar.TypeReg, Size: maxFile + 1}},
		"no driver":       {{Name: "drivers.d/x/y.yaml", Typeflag: tar.TypeReg}},
		"no directory":    {{Name: "drivers.d", Typeflag: tar.TypeReg}},
		"empty":           {},
	} {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		w := tar.NewWriter(z)
		for _, h := range headers {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			_, _ = w.Write(make([]byte, h.Size))
		}
		m, _ := json.Marshal(Manifest{Format: format})
		_ = w.WriteHeader(header(manifestName, int64(len(m))))
		_, _ = w.Write(m)
		_, _ = w.Close(), z.Close()
		if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(t.Context(), file, dir, external.Options{}, time.Now()); !errors.Is(err, ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, place := range []string{dir, filepath.Dir(dir)} {
		if _, err := os.Lstat(filepath.Join(place, "x")); err == nil {
			t.Errorf("a file of the backup is in %s", place)
		}
	}
}

// TestNewerBackup is refused with the next step.
func TestNewerBackup(t *testing.T) {
	m, _ := json.Marshal(Manifest{Format: format + 1})
	if _, err := readManifest(bytes.NewReader(m), nil); !errors.Is(err, ErrNewer) {
		t.Error(err)
	}
}

// TestRestoreIsKilled: a restore is killed between any two steps of the exchange and run again, and the earlier content
// is kept.
func TestRestoreIsKilled(t *testing.T) {
	for steps := range 8 {
		dir, file := small(t)
		key := read(t, filepath.Join(dir, "pki/ca.key"))
		work := filepath.Join(dir, restoring)
		_, err := unpack(file, must(t, work, os.Mkdir(work, 0o700)))
		must(t, "unpack", err)
		must(t, "prepare", prepare(work, 0))
		halfway(t, dir, work, steps)
		_, err = Restore(t.Context(), file, dir, external.Options{}, time.Unix(2e9, 0))
		must(t, fmt.Sprintf("restore after %d steps", steps), err)
		if found, err := etcd.Check(filepath.Join(dir, "etcd")); err != nil || !found.Exists ||
			!bytes.Equal(key, read(t, filepath.Join(dir, "pki/ca.key"))) {
			t.Errorf("after %d steps: %v %v", steps, found, err)
		}
		if _, pending, err := Pending(dir); !pending || err != nil {
			t.Errorf("after %d steps: pending %v, %v", steps, pending, err)
		}
		if old, _ := filepath.Glob(filepath.Join(dir, replaced+"*", "etcd")); len(old) == 0 {
			t.Errorf("after %d steps what was there is gone", steps)
		}
	}
}

// must returns what was tried.
func must(t *testing.T, what string, err error) string {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return what
}

// halfway does the first steps of an exchange.
func halfway(t *testing.T, dir, work string, steps int) {
	t.Helper()
	old := filepath.Join(dir, replaced+"0")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"etcd", "format", "pki"} {
		for _, move := range [][2]string{
			{filepath.Join(dir, name), filepath.Join(old, name)}, {filepath.Join(work, name), filepath.Join(dir, name)},
		} {
			if steps--; steps < 0 {
				return
			}
			if err := os.Rename(move[0], move[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestKeep: only the oldest backups are removed.
func TestKeep(t *testing.T) {
	dir, _ := small(t)
	s, err := etcd.Start(t.Context(), etcd.Options{Dir: filepath.Join(dir, "etcd"), NoSync: true})
	must(t, "start", err)
	defer s.Stop()
	own := filepath.Join(dir, datadir.Backups)
	must(t, "folder", os.MkdirAll(own, 0o700))
	others := []string{
		".draft-1", "20250101T000000Z-daily.tar.gz.old", "20250101T000000Z-manual.tar.gz", "20250102T000000Z-daily.tar.gz",
		"mine.tar.gz",
	}
	for _, name := range append(others, "20250101T000000Z-daily.tar.gz") {
		must(t, "file", os.WriteFile(filepath.Join(own, name), nil, 0o600))
	}
	o := Options{DataDir: dir, Reason: "daily"}
	must(t, "keep", keepOne(o, 2, func() error {
		_, err := SaveRunning(t.Context(), o, Name(dir, o.Reason, time.Now()))
		return err
	}))
	made := slices.DeleteFunc(tree(t, own), func(name string) bool { return slices.Contains(others, name) })
	if len(made) != 1 || len(tree(t, own)) != len(others)+1 {
		t.Fatalf("there are %v", tree(t, own))
	}
	if m, err := Check(filepath.Join(own, made[0])); err != nil || m.Reason != "daily" {
		t.Errorf("%v: %v", m, err)
	}
}

// TestDue: the next backup is due a day after the last one, whatever that was made for, and immediately if there is
// none, or if the newest has a time in the future.
func TestDue(t *testing.T) {
	dir := t.TempDir()
	must(t, "folder", os.MkdirAll(filepath.Join(dir, datadir.Backups), 0o700))
	must(t, "file", os.WriteFile(Name(dir, "manual", time.Date(2025, 1, 2, 0, 0, 0, 0, time.UTC)), nil, 0o600))
	for now, want := range map[string]string{
		"2025-01-02T05:00:00Z": "2025-01-03T00:00:00Z",
		"2025-02-02T05:00:00Z": "2025-01-03T00:00:00Z",
		"2024-01-02T05:00:00Z": "2024-01-02T05:00:00Z",
	} {
		at, err := time.Parse(time.RFC3339, now)
		must(t, now, err)
		if got := due(dir, 24*time.Hour, at).Format(time.RFC3339); got != want {
			t.Errorf("at %s the next one is due at %s, want %s", now, got, want)
		}
	}
}
