package etcd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"volplane.dev/volplane/standalone/etcd"
)

// TestLacks: a store lacks something if it is another one or ends earlier; without a record the answer is no.
func TestLacks(t *testing.T) {
	for _, c := range []struct {
		what            string
		found, recorded etcd.Position
		lacks           bool
	}{
		{"nothing was recorded", etcd.Position{Cluster: "a", Revision: 1}, etcd.Position{}, false},
		{"the same", etcd.Position{Cluster: "a", Revision: 7}, etcd.Position{Cluster: "a", Revision: 7}, false},
		{"written since", etcd.Position{Cluster: "a", Revision: 8}, etcd.Position{Cluster: "a", Revision: 7}, false},
		{"an older one", etcd.Position{Cluster: "a", Revision: 6}, etcd.Position{Cluster: "a", Revision: 7}, true},
		{"another one", etcd.Position{Cluster: "b", Revision: 7}, etcd.Position{Cluster: "a", Revision: 7}, true},
		{"another and newer one", etcd.Position{Cluster: "b", Revision: 9}, etcd.Position{Cluster: "a", Revision: 7}, true},
		{"a new one", etcd.Position{Cluster: "b", Revision: 1}, etcd.Position{Cluster: "a", Revision: 7}, true},
	} {
		if got := c.found.Lacks(c.recorded); got != c.lacks {
			t.Errorf("%s: %v, want %v", c.what, got, c.lacks)
		}
	}
}

// TestRecorded: a missing record is the zero Position, and an unreadable one an error with the next step.
func TestRecorded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reached")
	if p, err := etcd.Recorded(path); p != (etcd.Position{}) || err != nil {
		t.Errorf("without a file: %v, %v", p, err)
	}
	for _, content := range []string{
		"", "{", "null", "{}", `{"cluster":"a"}`, `{"revision":7}`, `{"cluster":"a","revision":-7}`,
		`{"cluster":"a","revision":7}` + strings.Repeat(" ", 2000) + "!",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := etcd.Recorded(path)
		if len(content) > 1000 {
			if err != nil || p.Revision != 7 {
				t.Errorf("bounded: %v, %v", p, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "remove the file if") {
			t.Errorf("%q: %v, %v", content, p, err)
		}
	}
}

// TestRecordIsNeverAhead: whatever was done to a store, and however it ended, it has everything that its record says;
// its earlier state does not.
func TestRecordIsNeverAhead(t *testing.T) {
	t.Parallel()
	parent := newDir(t)
	dir, record := filepath.Join(parent, "e"), filepath.Join(parent, "reached")
	put := func(c *clientv3.Client) error {
		_, err := c.Put(t.Context(), "/registry/a", strings.Repeat("x", 1000))
		return err
	}
	for i, c := range []struct {
		what string
		do   func(c *clientv3.Client, s *etcd.Server) error
	}{
		{"nothing", func(*clientv3.Client, *etcd.Server) error { return nil }},
		{"a write", func(c *clientv3.Client, _ *etcd.Server) error { return put(c) }},
		{"a deletion", func(c *clientv3.Client, _ *etcd.Server) error {
			_, err := c.Delete(t.Context(), "/registry/a")
			return err
		}},
		{"a compaction of deletions only", func(c *clientv3.Client, _ *etcd.Server) error {
			if err := put(c); err != nil {
				return err
			}
			d, err := c.Delete(t.Context(), "/registry/a")
			if err != nil {
				return err
			}
			_, err = c.Compact(t.Context(), d.Header.Revision, clientv3.WithCompactPhysical())
			return err
		}},
		{"a defragmentation", func(c *clientv3.Client, s *etcd.Server) error {
			if err := put(c); err != nil {
				return err
			}
			return s.Defragment()
		}},
	} {
		older := ""
		if i > 0 {
			older = filepath.Join(parent, fmt.Sprint("older", i))
			clone(t, dir, older)
		}
		s, err := etcd.Start(t.Context(), etcd.Options{Dir: dir, Record: record})
		if err != nil {
			t.Fatal(err)
		}
		started, killed := filepath.Join(parent, fmt.Sprint("started", i)), filepath.Join(parent, fmt.Sprint("killed", i))
		clone(t, dir, started)
		has(t, c.what+", at the start", started, record, true)
		if err := c.do(s.Client(), s); err != nil {
			t.Fatal(c.what, err)
		}
		clone(t, dir, killed)
		has(t, c.what+", killed", killed, record, true)
		has(t, c.what+", as it was before the start", older, record, false)
		s.Stop()
		has(t, c.what+", stopped", dir, record, true)
		has(t, c.what+", as it was at the start", started, record, i == 0)
	}
	if info, err := os.Stat(record); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want a file of mode 0600", info, err)
	}
	another(t, filepath.Join(parent, "o"), record)
}

// another checks that another store, with more revisions, lacks what was recorded.
func another(t *testing.T, dir, record string) {
	t.Helper()
	s, err := etcd.Start(t.Context(), etcd.Options{Dir: dir, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if _, err := s.Client().Put(t.Context(), fmt.Sprint("/registry/", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	s.Stop()
	has(t, "another store with more revisions", dir, record, false)
}

// has checks whether a store, if it exists, has everything that was recorded.
func has(t *testing.T, what, dir, record string, want bool) {
	t.Helper()
	if dir == "" {
		return
	}
	recorded, err := etcd.Recorded(record)
	if err != nil {
		t.Fatal(what, err)
	}
	found, err := etcd.Check(dir)
	if err != nil || !found.Exists {
		t.Fatalf("%s: %+v, %v", what, found, err)
	}
	if recorded.Revision == 0 || found.Lacks(recorded) == want {
		t.Errorf("%s: found %+v, recorded %+v", what, found.Position, recorded)
	}
}
