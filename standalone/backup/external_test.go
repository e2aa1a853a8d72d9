package backup_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/backup"
	"volplane.dev/volplane/standalone/external"
	"volplane.dev/volplane/standalone/standalonetest"
)

func TestMain(m *testing.M) { standalonetest.Main(m) }

// startAt runs an API server with a directory and a store that others run, until stop or the test's end.
func startAt(t *testing.T, dir string, at external.Options) (c kubernetes.Interface, stop func()) {
	t.Helper()
	return startWith(t, apiserver.Options{DataDir: dir, External: at, Version: "v1"})
}

// isRestored requires that a directory has exactly the content of the backup, and that its API shows that it was
// restored.
func isRestored(t *testing.T, dir string) {
	t.Helper()
	c, stop := startAt(t, dir, external.Options{})
	defer stop()
	if !has(t, c, "default", "before") || has(t, c, "default", "after") {
		t.Error("it does not have what the backup has")
	}
	if !has(t, c, volume.NamespaceSystem, volume.ConfigRestored) {
		t.Error("it does not say that it was restored")
	}
}

// isWhole requires that a directory has objects, and that its API does not say that it was restored.
func isWhole(t *testing.T, dir string, names ...string) (c kubernetes.Interface, stop func()) {
	t.Helper()
	c, stop = startAt(t, dir, external.Options{})
	for _, name := range names {
		if !has(t, c, "default", name) {
			t.Errorf("%s is not there", name)
		}
	}
	if has(t, c, volume.NamespaceSystem, volume.ConfigRestored) {
		t.Error("it says that it was restored")
	}
	return c, stop
}

// TestExternal: backups of a store that others run contain the keys below the prefix, and are restored to an empty
// prefix or to an etcd of the control plane's own.
func TestExternal(t *testing.T) {
	m := standalonetest.StartMembers(t, 1)
	dir, file := short(t), filepath.Join(t.TempDir(), "backup")
	c, stop := startAt(t, dir, m.Options)
	put(t, c, "before")
	saved, err := backup.Save(t.Context(), options(dir), file)
	if err != nil || saved.Keys < 10 {
		t.Fatal(saved, err)
	}
	isDescribed(t, dir)
	put(t, c, "after")
	stop()
	if again, err := backup.Check(file); err != nil || again.Keys != saved.Keys {
		t.Errorf("%+v, %v; want %d keys", again, err, saved.Keys)
	}
	there := m.Options
	there.Prefix = "/volplane/there"
	for _, to := range []external.Options{there, {}} {
		into := short(t)
		if _, err := backup.Restore(t.Context(), file, into, to, time.Now()); err != nil {
			t.Fatal(err)
		}
		isRestored(t, into)
	}
	if _, err := backup.Restore(t.Context(), file, short(t), there, time.Now()); !errors.Is(err, external.ErrInUse) {
		t.Error("a prefix with other objects:", err)
	}
	_, err = backup.Restore(t.Context(), file, dir, external.Options{}, time.Now())
	if !errors.Is(err, external.ErrInUse) {
		t.Error("a prefix with objects:", err)
	}
	// The refused restore has changed nothing, and does not count as one.
	isWhole(t, dir, "before", "after")
}

// isDescribed requires that the store of a directory is described with its only member.
func isDescribed(t *testing.T, dir string) {
	t.Helper()
	if d, err := backup.Describe(t.Context(), dir); err != nil || len(d.Members) != 1 || !d.Members[0].Leader ||
		!strings.Contains(d.Store, "/volplane/here") {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestMove: objects move from an etcd of the control plane's own to one that others run, and back, and nothing is
// treated as a restored backup.
func TestMove(t *testing.T) {
	m := standalonetest.StartMembers(t, 1)
	dir := short(t)
	c, stop := start(t, dir)
	put(t, c, "first")
	stop()
	out, err := backup.Move(t.Context(), options(dir), m.Options, time.Now())
	if err != nil || out.Keys < 10 {
		t.Fatal(out, err)
	}
	if _, err := os.Stat(filepath.Join(out.Left, "member")); err != nil {
		t.Error("the former etcd is not where it was said to be:", err)
	}
	c, stop = isWhole(t, dir, "first")
	put(t, c, "second")
	stop()
	if _, err := backup.Move(t.Context(), options(dir), m.Options, time.Now()); err == nil {
		t.Error("it was moved to where it is")
	}
	back, err := backup.Move(t.Context(), options(dir), external.Options{}, time.Now().Add(time.Second))
	if err != nil || back.Keys < 10 {
		t.Fatal(back, err)
	}
	isWhole(t, dir, "first", "second")
	if _, err := backup.Move(t.Context(), options(dir), external.Options{}, time.Now()); err == nil {
		t.Error("a running control plane was moved")
	}
}
