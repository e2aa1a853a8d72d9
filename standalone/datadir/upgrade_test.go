package datadir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/standalone/datadir"
)

// used makes a data directory with something in it.
func used(t *testing.T, path string) *datadir.Dir {
	t.Helper()
	d := open(t, path)
	t.Cleanup(func() { _ = d.Close() })
	for name, content := range map[string]string{
		"etcd/member/member/snap/db": "objects" + strings.Repeat("\x00", 1<<20) + "more", "etcd/member/member/wal/0.wal": strings.Repeat("\x00", 4<<20),
		"pki/ca.key": "key", "pool/volumes/vol-1/disk.img": "data", "node/journal/one": "{}",
	} {
		at := filepath.Join(path, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestUpgrade: what another version has left is copied before it is changed,
// once, and only what the control plane knows.
func TestUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	d, now := used(t, path), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	backup, from, err := d.Upgrade("v1", true, now)
	if err != nil || from != datadir.Unknown || backup != filepath.Join(path, "backup", "20260102T030405Z-upgrade") {
		t.Fatalf("%q from %q, %v", backup, from, err)
	}
	for _, name := range []string{"etcd/member/member/snap/db", "etcd/member/member/wal/0.wal", "pki/ca.key", "format"} {
		if read(t, filepath.Join(backup, name)) != read(t, filepath.Join(path, name)) {
			t.Errorf("%s differs", name)
		}
	}
	for _, name := range []string{"pool", "node", "lock", "backup", "version"} {
		if _, err := os.Lstat(filepath.Join(backup, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is in the backup: %v", name, err)
		}
	}
	var s unix.Stat_t
	if err := unix.Stat(filepath.Join(backup, "etcd/member/member/wal/0.wal"), &s); err != nil || s.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes for nothing, %v", s.Blocks*512, err)
	}
	if backup, from, err := d.Upgrade("v1", true, now); backup+from != "" || err != nil {
		t.Errorf("the same version: %q from %q, %v", backup, from, err)
	}
	if backup, from, err := d.Upgrade("v2", true, now.Add(time.Hour)); backup == "" || from != "v1" || err != nil {
		t.Errorf("the next version: %q from %q, %v", backup, from, err)
	}
}

// TestFirstStart: there is nothing to back up.
func TestFirstStart(t *testing.T) {
	d := open(t, filepath.Join(t.TempDir(), "d"))
	defer d.Close()
	if backup, _, err := d.Upgrade("v1", false, time.Now()); backup != "" || err != nil {
		t.Errorf("%q, %v", backup, err)
	}
	if got := read(t, filepath.Join(d.Path, "version")); got != "v1\n" {
		t.Errorf("version %q", got)
	}
}

// TestPrune: of the backups before upgrades the last three stay, all others do,
// and what a kill has left of one goes.
func TestPrune(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	d, now := used(t, path), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, other := range []string{"backup/20250101T000000Z-mine", "backup/.new-1/etcd"} {
		if err := os.MkdirAll(filepath.Join(path, other), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i, version := range []string{"v1", "v2", "v3", "v4", "v5"} {
		if _, _, err := d.Upgrade(version, true, now.Add(time.Duration(i)*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(path, "backup"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got, want := strings.Join(names, " "), "20250101T000000Z-mine 20260102T050405Z-upgrade 20260102T060405Z-upgrade 20260102T070405Z-upgrade"; got != want {
		t.Errorf("left %s, want %s", got, want)
	}
}

// TestNoRoomForBackup: without a backup nothing is changed, and the next start
// tries again.
func TestNoRoomForBackup(t *testing.T) {
	path := t.TempDir()
	d := used(t, path)
	disk := filepath.Join(path, "backup")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4096"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	if _, _, err := d.Upgrade("v1", true, time.Now()); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "make room") {
		t.Errorf("%v, want %v", err, unix.ENOSPC)
	}
	if left, err := os.ReadDir(disk); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Lstat(filepath.Join(path, "version")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the version was changed: %v", err)
	}
}
