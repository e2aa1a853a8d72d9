package apiserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/standalonetest"
)

// remote is a client over a network connection.
func remote(t *testing.T, s *apiserver.Server) kubernetes.Interface {
	t.Helper()
	config := standalonetest.Remote(t, s)
	config.QPS = -1
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func told(ctx context.Context, t *testing.T, c kubernetes.Interface) diskspace.Report {
	t.Helper()
	data, err := c.Discovery().RESTClient().Get().AbsPath(diskspace.Path).Do(ctx).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var r diskspace.Report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// within repeats a condition that the server's periodic checks make true.
func within(t *testing.T, limit time.Duration, what string, is func() error) {
	t.Helper()
	testkit.Eventually(t, limit, func() string {
		if err := is(); err != nil {
			return what + ": " + err.Error()
		}
		return ""
	})
}

func big(name string, finalizers ...string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}, Data: map[string]string{
		"x": strings.Repeat("x", 500_000),
	}}
}

// smallDatabase is a server whose database has a small quota, and a user of it.
type smallDatabase struct {
	*testing.T
	c kubernetes.Interface
}

// spaces is the number of namespaces with large objects: a single namespace is not allowed to fill the database.
const spaces = 10

// makeSpaces makes these namespaces.
func (w smallDatabase) makeSpaces() {
	w.Helper()
	for i := range spaces {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: spaceOf(i)}}
		if _, err := w.c.CoreV1().Namespaces().Create(w.Context(), n, metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
	}
}

func spaceOf(i int) string { return fmt.Sprint("space-", i%spaces) }

// fill creates objects with a finalizer until that is refused, and returns their namespaces and names.
func (w smallDatabase) fill(prefix string) (names [][2]string) {
	w.Helper()
	for i := range 1000 {
		name := [2]string{spaceOf(i), fmt.Sprint(prefix, i)}
		_, err := w.c.CoreV1().ConfigMaps(name[0]).Create(w.Context(), big(name[1], "volplane.dev/test"),
			metav1.CreateOptions{})
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "DatabaseFull") &&
			strings.Contains(err.Error(), "deletions are not") {
			return names
		}
		if err != nil {
			w.Fatal(err)
		}
		names = append(names, name)
		// The server gets a check every few writes: no client fills a quota between two checks.
		if i%8 == 7 {
			w.turn()
		}
	}
	w.Fatal("no write is refused")
	return nil
}

// turn waits until the server has checked its room again.
func (w smallDatabase) turn() {
	w.Helper()
	before := told(w.Context(), w.T, w.c).Used
	within(w.T, time.Minute, "a turn", func() error {
		if told(w.Context(), w.T, w.c).Used == before {
			return fmt.Errorf("%d are used", before)
		}
		return nil
	})
}

// empty deletes what fill has created. Each step writes the whole object again: etcd may need a check to drop the old
// revisions.
func (w smallDatabase) empty(names [][2]string) {
	w.Helper()
	for _, one := range names {
		maps, name := w.c.CoreV1().ConfigMaps(one[0]), one[1]
		within(w.T, time.Minute, "deletion", func() error { return maps.Delete(w.Context(), name, metav1.DeleteOptions{}) })
		within(w.T, time.Minute, "the end of what is deleted", func() error {
			_, err := maps.Patch(w.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
				metav1.PatchOptions{})
			return err
		})
	}
}

// TestFullDatabase: a user who fills the database is refused with a reason before etcd is full; existing objects can be
// deleted, also those with a finalizer, the control plane itself continues to write, and room comes back. A start over
// the quota works.
func TestFullDatabase(t *testing.T) {
	t.Parallel()
	o := apiserver.Options{DataDir: shortDir(t), Listen: "127.0.0.1:0", NoSync: true, Quota: 40 << 20}
	s := start(t, o)
	w := smallDatabase{t, remote(t, s)}
	w.makeSpaces()
	names := w.fill("a")
	if r := told(t.Context(), t, w.c); !r.Refuses || r.Reason != "DatabaseFull" || r.Used <= r.Limit || r.Limit == 0 {
		t.Errorf("report %+v", r)
	}
	if err := keep(t, standalonetest.Client(t, s, "system:volplane:test", "system:masters"), "own"); err != nil {
		t.Errorf("what the control plane has begun: %v", err)
	}
	w.empty(names[:len(names)/2])
	within(t, 2*time.Minute, "room after deletions", func() error { return keep(t, w.c, "small") })
	w.fill("b")
	s.Stop()
	o.Quota = 0
	s = start(t, o)
	defer s.Stop()
	if err := keep(t, remote(t, s), "after"); err != nil {
		t.Errorf("a start over the quota: %v", err)
	}
}

// TestRoomHasTheNewestBackup: the report describes this disk and database, with the time of the newest backup in the
// data directory; other users may not read it, and nothing can be written.
func TestRoomHasTheNewestBackup(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	s := start(t, apiserver.Options{DataDir: dir, Listen: "127.0.0.1:0", NoSync: true})
	defer s.Stop()
	c := remote(t, s)
	plausible(t, told(t.Context(), t, c))
	for _, name := range []string{
		"20260102T030405Z-daily.tar.gz", "20260304T050607Z-manual.tar.gz", "20260203T040506Z-upgrade.tar.gz",
		"20270101T000000Z-daily.txt", "notes",
	} {
		file := filepath.Join(dir, datadir.Backups, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	if r := told(t.Context(), t, c); r.Backup == nil || !r.Backup.Equal(want) {
		t.Errorf("the newest backup is reported as %v", r.Backup)
	}
	ask := func(c kubernetes.Interface, verb string) error {
		return c.Discovery().RESTClient().Verb(verb).AbsPath(diskspace.Path).Do(t.Context()).Error()
	}
	if err := ask(c, "POST"); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("POST: %v", err)
	}
	if err := ask(standalonetest.Client(t, s, "system:node:n1", "system:nodes"), "GET"); !apierrors.IsForbidden(err) {
		t.Errorf("asked by a node: %v", err)
	}
}

// plausible checks the report about a small database without a backup.
func plausible(t *testing.T, r diskspace.Report) {
	t.Helper()
	if r.Used <= 0 || r.Size < r.Used || r.Limit <= r.Used || r.Free <= 0 || r.Total < r.Free || r.Refuses {
		t.Errorf("report %+v", r)
	}
	if r.Backup != nil {
		t.Errorf("there is no backup, but the report has %s", r.Backup)
	}
}
