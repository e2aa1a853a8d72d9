package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// TestOlderStore: a control plane whose data directory got an older etcd keeps what is mounted for Pods that this etcd
// does not have, and reports that, until the etcd is accepted.
func TestOlderStore(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t)
	dir, paths, older := p.Dir, t.TempDir(), filepath.Join(t.TempDir(), "etcd")
	t.Cleanup(func() { planetest.UnmountBelow(t, paths) })
	t.Cleanup(func() { planetest.UnmountBelow(t, dir) })
	p.Stop()
	if err := os.CopyFS(older, os.DirFS(filepath.Join(dir, "etcd"))); err != nil {
		t.Fatal(err)
	}
	p = restarted(t, dir)
	typeInto(t, p, "volplane mount data "+paths+"/data --create --size 64Mi")
	// Nothing but the start has said how far the store is.
	p.Kill()
	if err := os.RemoveAll(filepath.Join(dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "etcd"), os.DirFS(older)); err != nil {
		t.Fatal(err)
	}
	p = restarted(t, dir)
	const says = "an older etcd, or another one, was put in the place of the one of"
	testkit.Eventually(t, time.Minute, func() string {
		return containing(typeInto(t, p, "volplane get events"), "nothing is unmounted, detached or deleted: "+says)
	})
	for _, command := range []string{"volplane status", "volplane why || true", "cat " + dir + ".log"} {
		want := says
		if strings.HasPrefix(command, "cat") {
			want = "etcd in the data directory is an older store than the one that was used last"
		}
		if missing := containing(typeInto(t, p, command), want); missing != "" {
			t.Error(missing)
		}
	}
	if !isMounted(t, paths+"/data") {
		t.Fatal("the volume of a newer Pod is unmounted")
	}
	typeInto(t, p, "volplane restore --accept")
	testkit.Eventually(t, time.Minute, func() string {
		if isMounted(t, paths+"/data") {
			return "it is accepted, and the volume that no Pod uses stays mounted"
		}
		return ""
	})
}

// restarted starts a control plane with a directory again, until the end of the test.
func restarted(t *testing.T, dir string) *plane.Plane {
	t.Helper()
	p, err := plane.Start(context.WithoutCancel(t.Context()), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

// containing returns what lacks a text, or "".
func containing(text, part string) string {
	if strings.Contains(text, part) {
		return ""
	}
	return text + "\n\nlacks: " + part
}

// isMounted says whether something is mounted at a path.
func isMounted(t *testing.T, path string) bool {
	t.Helper()
	var at, above unix.Stat_t
	if unix.Stat(path, &at) != nil || unix.Stat(filepath.Dir(path), &above) != nil {
		return false
	}
	return at.Dev != above.Dev
}
