package apiserver_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/etcd"
)

// TestDamagedDirectory: a data directory that has lost something is refused within seconds, on one screen with the
// command to type, and nothing in it is created again.
func TestDamagedDirectory(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	s := start(t, apiserver.Options{DataDir: dir, Listen: "127.0.0.1:0"})
	s.Stop()
	member := filepath.Join(dir, "etcd/member/member")
	for _, c := range []struct {
		// gone is moved away; then short is cut to a size.
		gone, short string
		size        int64
		is          error
		says        string
	}{
		{gone: filepath.Join(dir, "etcd"), is: apiserver.ErrLost, says: "has no objects, but " + dir +
			"/admin.kubeconfig"},
		{gone: filepath.Join(dir, "pki"), is: apiserver.ErrLost, says: "is missing"},
		{short: filepath.Join(member, "snap/db"), size: 8192, is: etcd.ErrDamaged, says: "snap/db is 8192 bytes long"},
		{
			short: filepath.Join(member, "wal/0000000000000000-0000000000000000.wal"), size: 4096, is: etcd.ErrDamaged,
			says: "the control plane has confirmed",
		},
	} {
		before := prepare(t, c.gone, c.short, c.size)
		begin := time.Now()
		_, err := apiserver.Start(t.Context(), apiserver.Options{DataDir: dir, Listen: "127.0.0.1:0"})
		if !errors.Is(err, c.is) || time.Since(begin) > 10*time.Second {
			t.Fatalf("%s%s: %v after %s; want %v", c.gone, c.short, err, time.Since(begin), c.is)
		}
		for _, part := range []string{c.says, "damaged  ", "safe     ", "volplane restore FILE --data-dir " + dir} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in: %v", part, err)
			}
		}
		if lines := strings.Count(err.Error(), "\n"); lines > 15 {
			t.Errorf("%d lines are more than a screen", lines)
		}
		if _, err := os.Stat(c.gone); c.gone != "" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was created again", c.gone)
		}
		before()
	}
	start(t, apiserver.Options{DataDir: dir, Listen: "127.0.0.1:0"}).Stop()
}

// prepare removes something and returns a function that restores it.
func prepare(t *testing.T, gone, short string, size int64) (back func()) {
	t.Helper()
	if gone != "" {
		if err := os.Rename(gone, gone+".away"); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.Rename(gone+".away", gone); err != nil {
				t.Fatal(err)
			}
		}
	}
	data, err := os.ReadFile(short)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(short, size); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.WriteFile(short, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStartEndsWhenAsked: also before it has begun.
func TestStartEndsWhenAsked(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := apiserver.Start(ctx, apiserver.Options{DataDir: shortDir(t), Listen: "127.0.0.1:0"}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}
