package datadir_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var errCause = errors.New("half of it is gone")

// TestDamaged: the newest backups are named, and the newest is the one to type.
func TestDamaged(t *testing.T) {
	d := open(t, filepath.Join(t.TempDir(), "d"))
	defer d.Close()
	err := d.Damaged("objects", errCause)
	if !errors.Is(err, errCause) || !strings.Contains(err.Error(), "none in "+d.Path+"/backup") ||
		!strings.Contains(err.Error(), "volplane restore FILE --data-dir "+d.Path) {
		t.Errorf("without backups: %v", err)
	}
	for _, name := range []string{"20260101", "20260102", "20260103", "20260104", ".new-20260105"} {
		if err := os.MkdirAll(filepath.Join(d.Path, "backup", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	text := d.Damaged("objects", errCause).Error()
	for part, want := range map[string]bool{
		errCause.Error(): true, "20260104\n": true, "20260103": true, "20260101": false, "new-": false,
		"volplane restore " + d.Path + "/backup/20260104 --data-dir " + d.Path: true,
	} {
		if strings.Contains(text, part) != want {
			t.Errorf("%q: want %v in %s", part, want, text)
		}
	}
}

// TestUsed: later files prove that a directory has had objects.
func TestUsed(t *testing.T) {
	for path, used := range map[string]bool{
		"admin.kubeconfig": true, "node/journal/pvc-1": true, "pool/volumes/vol-1": true,
		"pki/ca.key": false, "node/plugins/x": false, "pool/pool.json": false,
	} {
		d := open(t, filepath.Join(t.TempDir(), "d"))
		at := filepath.Join(d.Path, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := d.Used(); (got == at) != used || (got != "") != used {
			t.Errorf("with %s: %q", path, got)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
