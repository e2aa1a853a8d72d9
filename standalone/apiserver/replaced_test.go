package apiserver_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/standalonetest"
)

// replacement is a change of a stopped data directory, given its etcd from an earlier stop and that of another control
// plane with more objects.
type replacement struct {
	what   string
	change func(t *testing.T, dir, older, other string)
	// held means that nothing is removed afterwards, has that an object with the name of the newer one exists.
	held, has bool
}

// replacements are applied to one directory in this order.
func replacements() []replacement {
	place := func(t *testing.T, dir, store string) {
		t.Helper()
		etcd := filepath.Join(dir, "etcd")
		if err := os.RemoveAll(etcd); err != nil {
			t.Fatal(err)
		}
		copyStore(t, store, etcd)
	}
	return []replacement{
		{"its own", func(*testing.T, string, string, string) {}, false, true},
		{"its own, of a version without a record", func(t *testing.T, dir, _, _ string) {
			t.Helper()
			if err := os.Remove(filepath.Join(dir, "reached")); err != nil {
				t.Fatal(err)
			}
		}, false, true},
		{"an older one", func(t *testing.T, dir, older, _ string) { place(t, dir, older) }, true, false},
		{"what an older one has become", func(*testing.T, string, string, string) {}, false, false},
		{"an older one again", func(t *testing.T, dir, older, _ string) { place(t, dir, older) }, true, false},
		{"another one", func(t *testing.T, dir, _, other string) { place(t, dir, other) }, true, true},
	}
}

// TestReplacedStore: an older or a different etcd in the place of the last one is noticed, and nothing is removed until
// it is accepted; clients that have seen newer objects are not misled.
func TestReplacedStore(t *testing.T) {
	t.Parallel()
	dir, elsewhere := shortDir(t), shortDir(t)
	older, other := filepath.Join(shortDir(t), "older"), filepath.Join(elsewhere, "etcd")
	start(t, apiserver.Options{DataDir: dir, Listen: "127.0.0.1:0", NoSync: true}).Stop()
	copyStore(t, filepath.Join(dir, "etcd"), older)
	for to, objects := range map[string]int{dir: 1, elsewhere: 50} {
		s := start(t, apiserver.Options{DataDir: to, Listen: "127.0.0.1:0", NoSync: true})
		for i := range objects {
			makeMap(t, s, "newer"+strconv.Itoa(i))
		}
		s.Stop()
	}
	seen := int64(0)
	for _, c := range replacements() {
		c.change(t, dir, older, other)
		seen = c.check(t, dir, seen)
	}
	if kept, err := filepath.Glob(filepath.Join(dir, "replaced-*", "etcd")); err != nil || len(kept) == 0 {
		t.Errorf("what was put there is kept in %q, %v", kept, err)
	}
}

// check starts a server after the change, accepts it, and returns a resource version that it has issued; seen is the
// last one before.
func (c replacement) check(t *testing.T, dir string, seen int64) int64 {
	t.Helper()
	var log bytes.Buffer
	s := start(t, apiserver.Options{
		DataDir: dir, Listen: "127.0.0.1:0", NoSync: true, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	defer s.Stop()
	client := standalonetest.Client(t, s, "")
	err := kube.CheckHeld(t.Context(), client)
	if (err != nil) != c.held || c.held && !strings.Contains(err.Error(), "an older etcd, or another one, was") {
		t.Errorf("%s: held by %v, want %v", c.what, err, c.held)
	}
	if said := strings.Contains(log.String(), "until volplane restore --accept"); said != c.held {
		t.Errorf("%s: the log says %q", c.what, &log)
	}
	maps := client.CoreV1().ConfigMaps("default")
	if _, err := maps.Get(t.Context(), "newer0", metav1.GetOptions{}); (err == nil) != c.has {
		t.Errorf("%s: the newer object: %v, want it there %v", c.what, err, c.has)
	}
	if c.held {
		err := client.CoreV1().ConfigMaps(volume.NamespaceSystem).Delete(t.Context(), volume.ConfigRestored,
			metav1.DeleteOptions{})
		if err != nil {
			t.Error(c.what, err)
		}
	}
	version := makeMap(t, s, "now"+strconv.FormatInt(seen, 10))
	if version <= seen {
		t.Errorf("%s: the resource version %d follows %d", c.what, version, seen)
	}
	return version
}

// copyStore copies an etcd that does not run.
func copyStore(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// makeMap returns the resource version of a new ConfigMap.
func makeMap(t *testing.T, s *apiserver.Server, name string) int64 {
	t.Helper()
	m, err := standalonetest.Client(t, s, "").CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	version, err := strconv.ParseInt(m.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return version
}
