package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestSyncs: a record is on the disk before it takes the place of the last one,
// and the directory when the place was taken, when a record was put in doubt and
// when it was dropped. A host that loses its power shows nothing else.
func TestSyncs(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, "1")
	var seen []string
	j.sync = func(f *os.File) error {
		what := "directory"
		if f.Name() != dir {
			what = "record"
		}
		seen = append(seen, fmt.Sprint(what, " beside ", len(files(t, dir)), " and ", len(doubts(t, dir)), " in doubt"))
		return nil
	}
	r := sample("h")
	step := func(what string, err error, want ...string) {
		t.Helper()
		if err != nil || !slices.Equal(seen, want) {
			t.Errorf("%s: %v, synced %q, wanted %q", what, err, seen, want)
		}
		seen = nil
	}
	step("put", j.Put(r), "record beside 0 and 0 in doubt", "directory beside 1 and 0 in doubt")
	blocked(t, dir, r.Key())
	step("settle", j.Settle(r), "directory beside 1 and 1 in doubt")
	step("drop", j.Drop(r.Key()), "directory beside 0 and 0 in doubt")
}

func doubts(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+doubtSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return names
}
