package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"volplane.dev/volplane/internal/decide/mount"
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
	for range 2 {
		if err := again.Drop("d.example^b"); err != nil {
			t.Fatal(err)
		}
	}
	if last, _ := open(t, dir, "1"); len(last.List()) != 1 || last.Get("d.example^b") != nil {
		t.Errorf("after drop: %v", last.List())
	}
}

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

func TestFilesAreForTheirOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	j, _ := open(t, dir, "1")
	if err := j.Put(sample("h")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, fileName("d.example^h")): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
}

// TestTorn moves aside, and names, whatever is not a whole record, for every
// length that a record can be torn to.
func TestTorn(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	for _, h := range []string{"good", "bad"} {
		if err := j.Put(sample(h)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, fileName("d.example^bad"))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		again, aside := open(t, dir, "1")
		if len(aside) != 1 || again.Get("d.example^bad") != nil || again.Get("d.example^good") == nil {
			t.Fatalf("torn to %d bytes: aside %v, left %v", n, aside, again.List())
		}
		if kept, err := os.ReadFile(aside[0]); err != nil || string(kept) != string(whole[:n]) {
			t.Fatalf("torn to %d bytes: what was moved aside changed: %v", n, err)
		}
		if err := os.Remove(aside[0]); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRecordUnderAnotherName(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	if err := j.Put(sample("h")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, fileName("d.example^h")), filepath.Join(dir, fileName("d.example^other"))); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		if _, aside := open(t, dir, "1"); len(aside) != 1-n {
			t.Fatalf("open %d: aside %v", n, aside)
		}
	}
}

// TestNewerFormatRefusesTheStart, whatever its records look like, and touches
// nothing else on the way.
func TestNewerFormatRefusesTheStart(t *testing.T) {
	for _, record := range []string{`{"driver":"d.example","handle":"h"}`, `"of another kind"`, `[1]`} {
		dir := t.TempDir()
		open(t, dir, "1")
		path := filepath.Join(dir, fileName("d.example^h"))
		files := map[string]string{
			path:                                 fmt.Sprintf(`{"format":%d,"record":%s,"more":{}}`, format+1, record),
			filepath.Join(dir, fileName("torn")): "{", filepath.Join(dir, fileName("unfinished")+tmpSuffix): "{",
		}
		for name, text := range files {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := Open(dir, "1"); !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), path) {
			t.Fatalf("got %v", err)
		}
		for name, text := range files {
			if got, err := os.ReadFile(name); err != nil || string(got) != text {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
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
	if want := strings.Replace(string(old), `"format":1`, fmt.Sprintf(`"format":%d`, format), 1); err != nil || string(now) != strings.TrimSpace(want) {
		t.Errorf("written again as %s, %v", now, err)
	}
}

// TestUnfinishedWrite is a crash between the temporary file and the rename:
// the old record counts.
func TestUnfinishedWrite(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	if err := j.Put(sample("h")); err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(dir, fileName("d.example^h")+tmpSuffix)
	if err := os.WriteFile(tmp, []byte(`{"format":1,"rec`), 0o600); err != nil {
		t.Fatal(err)
	}
	again, aside := open(t, dir, "1")
	if diff := cmp.Diff(sample("h"), again.Get("d.example^h")); diff != "" || len(aside) > 0 {
		t.Errorf("aside %v (-want +got):\n%s", aside, diff)
	}
	if _, err := os.Stat(tmp); !os.IsNotExist(err) {
		t.Error("the unfinished file stays", err)
	}
}

func TestFailedWriteKeepsTheOldRecord(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	if err := j.Put(sample("h")); err != nil {
		t.Fatal(err)
	}
	// A directory where the temporary file goes lets every write fail.
	if err := os.Mkdir(filepath.Join(dir, fileName("d.example^h")+tmpSuffix), 0o700); err != nil {
		t.Fatal(err)
	}
	r := sample("h")
	r.Stage = mount.Unstaging
	if err := j.Put(r); err == nil {
		t.Fatal("no error")
	}
	if got := j.Get("d.example^h"); got.Stage != mount.Staged {
		t.Errorf("got %+v", got)
	}
}

func TestAnotherBoot(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	if err := j.Put(sample("h")); err != nil {
		t.Fatal(err)
	}
	again, _ := open(t, dir, "2")
	if r := again.Get("d.example^h"); r.Stage != mount.Staging || r.Boot != "2" {
		t.Errorf("got %+v", r)
	}
}

// blocked keeps a record from being written, as a full disk does.
func blocked(t *testing.T, dir, key string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, fileName(key)+tmpSuffix), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, fileName(key)+tmpSuffix, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func unblocked(t *testing.T, dir, key string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(dir, fileName(key)+tmpSuffix)); err != nil {
		t.Fatal(err)
	}
}

// TestSettle: without room nothing new is written, and what is there is not
// believed after a crash.
func TestSettle(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	r := sample("h")
	r.Targets[0].Phase = mount.Published
	if err := j.Settle(r); err != nil {
		t.Fatal(err)
	}
	blocked(t, dir, r.Key())
	less := r.Clone()
	less.Targets = nil
	for range 2 {
		if err := j.Settle(less); err != nil || len(j.Get(r.Key()).Targets) > 0 {
			t.Fatalf("settle: %v, %+v", err, j.List())
		}
	}
	unblocked(t, dir, r.Key())
	after, aside := open(t, dir, "1")
	unknown := r.Doubtful()
	if diff := cmp.Diff([]*mount.Record{unknown}, after.List()); diff != "" || len(aside) > 0 {
		t.Fatalf("after a crash, aside %v (-want +got):\n%s", aside, diff)
	}
	if err := after.Put(less); err != nil {
		t.Fatal(err)
	}
	if last, _ := open(t, dir, "1"); last.Get(r.Key()).Stage != mount.Staged || len(last.Get(r.Key()).Targets) > 0 {
		t.Errorf("written again: %+v", last.List())
	}
	if names := files(t, dir); len(names) != 1 {
		t.Errorf("files: %v", names)
	}
}

// TestSettleNothing: what was never written cannot be put in doubt.
func TestSettleNothing(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	blocked(t, dir, sample("h").Key())
	if err := j.Settle(sample("h")); err == nil || len(j.List()) > 0 {
		t.Errorf("settle: %v, %+v", err, j.List())
	}
}

// TestDropOfADoubtfulRecord leaves nothing of it.
func TestDropOfADoubtfulRecord(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	r := sample("h")
	if err := j.Put(r); err != nil {
		t.Fatal(err)
	}
	blocked(t, dir, r.Key())
	if err := j.Settle(r); err != nil {
		t.Fatal(err)
	}
	if err := j.Drop(r.Key()); err != nil || len(j.List()) > 0 {
		t.Fatalf("drop: %v, %+v", err, j.List())
	}
	if err := j.Settle(r); err == nil || len(j.List()) > 0 {
		t.Errorf("settled without a file: %v, %+v", err, j.List())
	}
	unblocked(t, dir, r.Key())
	if names := files(t, dir); len(names) > 0 {
		t.Errorf("files: %v", names)
	}
}

// TestNewerThanTheDoubt: a crash can leave a record that is in doubt beside the
// one that took its place.
func TestNewerThanTheDoubt(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	r := sample("h")
	if err := j.Put(r); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, fileName(r.Key())))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, doubtName(r.Key())), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	last, aside := open(t, dir, "1")
	if got := last.Get(r.Key()); got == nil || got.Stage != mount.Staged || len(aside) > 0 {
		t.Errorf("read %+v, aside %v", got, aside)
	}
	if names := files(t, dir); len(names) != 1 {
		t.Errorf("files: %v", names)
	}
}

// files returns the journal's files of records.
func files(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	return names
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
			if err := j.Found(); err != nil {
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
	lossy("found again", false)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	j, _ = open(t, dir, "1")
	lossy("gone", true)
}
