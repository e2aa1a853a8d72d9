package backup_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/backup"
	"volplane.dev/volplane/standalone/external"
	"volplane.dev/volplane/standalone/standalonetest"
)

// start runs an API server over a directory, until stop or the test's end.
func start(t *testing.T, dir string) (client kubernetes.Interface, stop func()) {
	t.Helper()
	return startWith(t, apiserver.Options{DataDir: dir})
}

// startWith is start with more options.
func startWith(t *testing.T, o apiserver.Options) (client kubernetes.Interface, stop func()) {
	t.Helper()
	o.Listen, o.NoSync = "127.0.0.1:0", true
	s, err := apiserver.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			s.Stop()
		}
	}
	t.Cleanup(stop)
	return standalonetest.Client(t, s, ""), stop
}

// short is a directory whose name leaves room for the name of a socket.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func options(dir string) backup.Options {
	return backup.Options{DataDir: dir, Version: "v1", Reason: "test"}
}

func put(t *testing.T, c kubernetes.Interface, name string) *corev1.ConfigMap {
	t.Helper()
	o, err := c.CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// has says whether a ConfigMap exists.
func has(t *testing.T, c kubernetes.Interface, namespace, name string) bool {
	t.Helper()
	_, err := c.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
	return err == nil
}

// TestSaveAndRestore: a backup of a running control plane, and one of a stopped one, restore an empty, a used and a
// damaged directory; clients that had seen later objects are not misled, and the API shows that it was restored.
func TestSaveAndRestore(t *testing.T) {
	dir, files := short(t), t.TempDir()
	c, stop := start(t, dir)
	put(t, c, "before")
	running, stopped := filepath.Join(files, "running"), filepath.Join(files, "stopped")
	if m, err := backup.Save(t.Context(), options(dir), running); err != nil || m.Keys < 10 || m.Version != "v1" {
		t.Fatal(m, err)
	}
	put(t, c, "between")
	stop()
	if _, err := backup.Save(t.Context(), options(dir), stopped); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(stopped); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	c, stop = start(t, dir)
	last := put(t, c, "after").ResourceVersion
	stop()
	t.Run("empty", func(t *testing.T) { restored{file: running, into: short(t), seen: last}.check(t) })
	t.Run("used", func(t *testing.T) {
		restored{file: stopped, into: dir, seen: last, between: true, used: true}.check(t)
	})
	if err := os.Truncate(filepath.Join(dir, "etcd", "member", "member", "snap", "db"), 5000); err != nil {
		t.Fatal(err)
	}
	t.Run("damaged", func(t *testing.T) { restored{file: running, into: dir, seen: last, used: true}.check(t) })
}

// restored is a directory for a restore: used means that it has been a data directory, between that the backup has the
// object of that name, and seen is the last resource version that any client has seen.
type restored struct {
	file, into, seen string
	between, used    bool
}

func (r restored) check(t *testing.T) {
	t.Helper()
	result, err := backup.Restore(t.Context(), r.file, r.into, external.Options{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(result.Replaced, "etcd")); r.used == (err != nil) ||
		r.used != (result.Replaced != "") {
		t.Errorf("replaced is in %q: %v", result.Replaced, err)
	}
	client, stop := start(t, r.into)
	defer stop()
	for name, want := range map[string]bool{"before": true, "between": r.between, "after": false} {
		if has(t, client, "default", name) != want {
			t.Errorf("object %s: want it there %v", name, want)
		}
	}
	if !has(t, client, volume.NamespaceSystem, volume.ConfigRestored) {
		t.Error("the API does not say that it was restored")
	}
	if now := put(t, client, "now").ResourceVersion; len(now) <= len(r.seen) {
		t.Errorf("resource version %s after %s", now, r.seen)
	}
	if _, pending, err := backup.Pending(r.into); pending || err != nil {
		t.Errorf("still pending: %v, %v", pending, err)
	}
}

// TestRestoreIsRefused over a running control plane.
func TestRestoreIsRefused(t *testing.T) {
	dir := short(t)
	_, stop := start(t, dir)
	defer stop()
	file := filepath.Join(t.TempDir(), "b")
	if _, err := backup.Save(t.Context(), options(dir), file); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Restore(t.Context(), file, dir, external.Options{}, time.Now()); err == nil {
		t.Error("restored under a running control plane")
	}
	if m, err := backup.Examine(t.Context(), options(dir)); err != nil || m.Keys == 0 {
		t.Error(m, err)
	}
}
