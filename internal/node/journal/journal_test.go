package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/durable/durabletest"
)

func sample(handle string) *mount.Record {
	return &mount.Record{
		Driver: "d.example", Handle: handle, Volume: "pv", Stage: mount.Staged, StagingPath: "/s", Boot: "1",
		PublishContext: map[string]string{"device": "/dev/x"}, StageSecret: &mount.SecretRef{Namespace: "ns", Name: "s"},
		Targets: []mount.Target{{PodUID: "u", PodNamespace: "ns", PodName: "p", Path: "/t", Phase: mount.Publishing}},
	}
}

func open(t *testing.T, dir, boot string) (*Journal, []string) {
	t.Helper()
	j, aside, err := Open(dir, boot)
	if err != nil {
		t.Fatal(err)
	}
	return j, aside
}

func fileName(key string) string { return pathOf(key) + ".json" }

// TestRecords: the journal is records as others are.
func TestRecords(t *testing.T) {
	// A file may be long: that takes long to be tested.
	k := kind()
	k.Most = 8 << 10
	durabletest.Records(t, k, &file{format, sample("a/../../x")}, &file{format, sample("b")})
}

func TestPutOpenDrop(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	for _, h := range []string{"b", "a/../../x", "a/../../x"} {
		if err := j.Put(sample(h)); err != nil {
			t.Fatal(err)
		}
	}
	again, aside := open(t, dir, "1")
	if diff := cmp.Diff([]*mount.Record{sample("a/../../x"), sample("b")}, again.List()); diff != "" || len(aside) > 0 {
		t.Fatalf("aside %v, (-want +got):\n%s", aside, diff)
	}
	if r := again.Get("d.example^b"); r.Stage != mount.Staged {
		t.Errorf("read %+v", r)
	}
	if err := again.Drop("d.example^b"); err != nil {
		t.Fatal(err)
	}
	if last, _ := open(t, dir, "1"); len(last.List()) != 1 || last.Get("d.example^b") != nil {
		t.Errorf("after drop: %v", last.List())
	}
}

// TestRecordsAreCopies, to their targets.
func TestRecordsAreCopies(t *testing.T) {
	j, _ := open(t, t.TempDir(), "1")
	r := sample("h")
	if err := j.Put(r); err != nil {
		t.Fatal(err)
	}
	r.Stage, r.Targets[0].Phase = "", mount.Published
	j.Get(r.Key()).Targets[0].Phase = mount.Unpublishing
	if got := j.Get(r.Key()); got.Stage != mount.Staged || got.Targets[0].Phase != mount.Publishing {
		t.Errorf("changed from outside: %+v", got)
	}
}

// TestErrors name the volume.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{j.Put(sample("h")), j.Settle(sample("h")), j.Drop("d.example^h")} {
		if err == nil || !strings.Contains(err.Error(), "journal of volume d.example^h: ") {
			t.Errorf("the directory is gone: %v", err)
		}
	}
	if j, _, err := Open("/proc/journal", "1"); err == nil || j != nil {
		t.Error("a journal where none can be")
	}
}

// TestOlderFormat reads what the first program wrote, and writes its own.
func TestOlderFormat(t *testing.T) {
	dir := t.TempDir()
	old, err := os.ReadFile("testdata/format1.json")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, fileName("d.example^h"))
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	j, aside := open(t, dir, "1")
	if diff := cmp.Diff(sample("h"), j.Get("d.example^h")); diff != "" || len(aside) > 0 {
		t.Fatalf("aside %v (-want +got):\n%s", aside, diff)
	}
	if err := j.Put(j.Get("d.example^h")); err != nil {
		t.Fatal(err)
	}
	now, err := os.ReadFile(path)
	if want := strings.Replace(string(old), `"format":1`, fmt.Sprintf(`"format":%d`, format), 1); err != nil ||
		string(now) != strings.TrimSpace(want) {
		t.Errorf("written again as %s, %v", now, err)
	}
}

// TestSettle: the journal's record is in doubt after it could not be written.
func TestSettle(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	if err := j.Put(sample("h")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, fileName("d.example^h")+".tmp", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	less := sample("h")
	less.Targets = nil
	if err := j.Settle(less); err != nil || len(j.Get(less.Key()).Targets) > 0 {
		t.Fatalf("settle: %v, %+v", err, j.List())
	}
	if err := os.RemoveAll(filepath.Join(dir, fileName("d.example^h")+".tmp")); err != nil {
		t.Fatal(err)
	}
	after, _ := open(t, dir, "1")
	if diff := cmp.Diff([]*mount.Record{sample("h").Uncertain()}, after.List()); diff != "" {
		t.Errorf("after a crash (-want +got):\n%s", diff)
	}
}

// TestLossy: that records may be lost, all of them or one that cannot be read, is
// known until somebody has found what they told of, whatever ends before.
func TestLossy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	j, _ := open(t, dir, "1")
	lossy := func(what string, want bool) {
		t.Helper()
		if j.Lossy() != want {
			t.Errorf("%s: lossy %v", what, j.Lossy())
		}
		if j, _ = open(t, dir, "1"); j.Lossy() != want {
			t.Errorf("%s, and once more: lossy %v", what, j.Lossy())
		}
	}
	found := func() {
		t.Helper()
		for range 2 {
			if err := j.MarkComplete(); err != nil {
				t.Fatal(err)
			}
		}
	}
	lossy("there was none", true)
	found()
	lossy("found", false)
	if err := os.WriteFile(filepath.Join(dir, fileName("d.example^h")), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var aside []string
	if j, aside = open(t, dir, "1"); len(aside) != 1 {
		t.Fatalf("aside %v", aside)
	}
	lossy("one was torn", true)
	found()
	if err := os.MkdirAll(filepath.Join(dir, fileName("d.example^h"), "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if j, aside = open(t, dir, "1"); len(aside) != 1 {
		t.Fatalf("aside %v", aside)
	}
	lossy("a directory was in the place of one", true)
	found()
	lossy("found again", false)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	j, _ = open(t, dir, "1")
	lossy("gone", true)
}

// TestRecordsOfPod: the records of a Pod are those in which a target is the Pod's.
func TestRecordsOfPod(t *testing.T) {
	j, _ := open(t, t.TempDir(), "1")
	shared, other := sample("shared"), sample("other")
	shared.Targets = append(shared.Targets, mount.Target{PodUID: "v", Path: "/v"})
	for _, r := range []*mount.Record{shared, other} {
		if err := j.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	for pod, want := range map[string][]*mount.Record{"u": {other, shared}, "v": {shared}, "w": nil} {
		if diff := cmp.Diff(want, j.Of(pod)); diff != "" {
			t.Errorf("of Pod %s (-want +got):\n%s", pod, diff)
		}
	}
}

// TestDirectoryThatCannotBeUsed: a journal whose directories cannot be created is not opened, and one whose mark cannot
// be removed stays lossy.
func TestDirectoryThatCannotBeUsed(t *testing.T) {
	for name, prepare := range map[string]func(dir string) error{
		"a file in the way":     func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"no place for the mark": func(dir string) error { return os.MkdirAll(filepath.Join(dir, lossyFile, "x"), 0o700) },
	} {
		dir := filepath.Join(t.TempDir(), "journal")
		if err := prepare(dir); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Open(dir, "1"); err == nil {
			t.Errorf("%s: it is opened", name)
		}
	}
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	mark := filepath.Join(dir, lossyFile)
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(mark, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := j.MarkComplete(); err == nil || !j.Lossy() {
		t.Errorf("the mark is gone: %v", err)
	}
}
