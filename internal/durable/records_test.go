package durable

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

type item struct {
	Format int    `json:"format"`
	Key    string `json:"key"`
	Value  int    `json:"value"`
	Done   bool   `json:"done"`
	Boot   string `json:"boot"`
}

// items are records at whatever path their key says.
func items() Kind[item] {
	return Kind[item]{
		Format:    1,
		Most:      1 << 10,
		Path:      func(i *item) (string, error) { return i.Key, nil },
		Clone:     func(i *item) *item { c := *i; return &c },
		Uncertain: func(i *item) *item { c := *i; c.Done = false; return &c },
		Boot:      func(i *item) *string { return &i.Boot },
	}
}

func openItems(t *testing.T, dir string) *Records[item] {
	t.Helper()
	r, aside, err := OpenRecords(dir, "1", items())
	if err != nil || len(aside) > 0 {
		t.Fatal(aside, err)
	}
	return r
}

// TestSteps: a record is on the disk before it takes the place of the last one, and the directory when the place was
// taken, when a record was put in doubt and when it was dropped. A host that loses its power shows nothing else.
func TestSteps(t *testing.T) {
	dir := t.TempDir()
	r := openItems(t, dir)
	var seen []string
	full := false
	r.disk.before = func(step, path string) error {
		name, err := filepath.Rel(dir, path)
		seen = append(seen, step+" "+name)
		if full && step == "write" {
			return unix.ENOSPC
		}
		return err
	}
	i := &item{Format: 1, Key: "a/b/i", Done: true}
	for _, c := range []struct {
		argues string
		do     func(*item) error
		full   bool
		want   string
	}{
		{
			"the first one", r.Put, false,
			"sync a, sync ., write a/b/i.json.tmp, sync a/b/i.json.tmp, rename a/b/i.json, sync a/b",
		},
		{"replaced", r.Settle, false, "write a/b/i.json.tmp, sync a/b/i.json.tmp, rename a/b/i.json, sync a/b"},
		{"no room", r.Settle, true, "write a/b/i.json.tmp, remove a/b/i.json.tmp, rename a/b/i.doubt.json, sync a/b"},
		{"still none", r.Settle, true, "write a/b/i.json.tmp, remove a/b/i.json.tmp, rename a/b/i.doubt.json, sync a/b"},
		{
			"room", r.Put, false,
			"write a/b/i.json.tmp, sync a/b/i.json.tmp, rename a/b/i.json, sync a/b, remove a/b/i.doubt.json",
		},
		{"gone", func(i *item) error { return r.Drop(i.Key) }, true, "remove a/b/i.doubt.json, remove a/b/i.json, sync a/b"},
		{
			"never there", func(*item) error { return r.Drop("c/i") }, true,
			"remove c/i.doubt.json, remove c/i.json, sync c, sync .",
		},
	} {
		seen, full = nil, c.full
		if err := c.do(i); err != nil || strings.Join(seen, ", ") != c.want {
			t.Errorf("%s: %v\n got %s\nwant %s", c.argues, err, strings.Join(seen, ", "), c.want)
		}
	}
}

// TestDropHalfWay: what is left of a record that could not be dropped wholly is not taken for one in doubt.
func TestDropHalfWay(t *testing.T) {
	for _, uncertain := range []bool{false, true} {
		r := openItems(t, t.TempDir())
		i := &item{Format: 1, Key: "i", Done: true}
		fails := func(steps ...string) {
			r.disk.before = func(step, path string) error {
				if slices.Contains(steps, step) {
					return unix.ENOSPC
				}
				return nil
			}
		}
		if err := r.Put(i); err != nil {
			t.Fatal(err)
		}
		if fails("write"); uncertain && r.Settle(i) != nil {
			t.Fatal("not settled")
		}
		if fails("sync"); r.Drop("i") == nil || r.Get("i") == nil {
			t.Error("it is dropped, and may be there after a crash")
		}
		if fails("write"); r.Settle(i) == nil {
			t.Error("nothing is there, and it was settled")
		}
	}
}

// TestAside: the caller is notified before a record is moved aside; a file in quarantine is not a record.
func TestAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "i.json")
	kind, told := items(), 0
	kind.BeforeAside = func() {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
		told++
	}
	for n := range 2 {
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, aside, err := OpenRecords(dir, "1", kind); err != nil || len(aside) != 1 || told != n+1 {
			t.Errorf("aside %v, told %d times, %v", aside, told, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, Quarantine, "j.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, aside, err := OpenRecords(dir, "1", kind); err != nil || len(aside) > 0 {
		t.Errorf("aside %v, %v", aside, err)
	}
}

// TestLargest: what could not be read again is not written.
func TestLargest(t *testing.T) {
	r := openItems(t, t.TempDir())
	i := &item{Format: 1, Key: "i", Boot: "1"}
	data, err := json.Marshal(i)
	if err != nil {
		t.Fatal(err)
	}
	for most, fits := range map[int64]bool{int64(len(data)) - 1: false, int64(len(data)): true} {
		if r.Most = most; (r.Put(i) == nil) != fits {
			t.Errorf("%d bytes where %d are possible: written %v", len(data), most, !fits)
		}
	}
}

// TestPaths: no record is written outside of the directory, in quarantine, or larger than it can be read.
func TestPaths(t *testing.T) {
	dir := t.TempDir()
	r := openItems(t, filepath.Join(dir, "records"))
	long := strings.Repeat("x", 1<<10)
	for _, key := range []string{"", "/etc/x", "../x", "a/../../x", "quarantine/x", "a/quarantine/x", long} {
		if err := r.Put(&item{Format: 1, Key: key}); err == nil {
			t.Errorf("%.20q was written", key)
		}
		if err := r.Settle(&item{Format: 1, Key: key}); err == nil {
			t.Errorf("%.20q was settled", key)
		}
	}
	for _, key := range []string{"a b\n", "ä/ö", "x.doubt.y", "-", "..."} {
		if err := r.Put(&item{Format: 1, Key: key}); err != nil {
			t.Error(err)
		}
		if got := openItems(t, r.dir).Get(key); got == nil {
			t.Errorf("%q is not found", key)
		}
	}
}

// life is a directory, and what a process may find there.
type life struct {
	*testing.T
	dir   string
	r     *Records[item]
	now   map[string]item
	may   map[string][]item
	story []string
}

// none is what is found of a record that is not there.
func none() item { return item{} }

// found returns the record that the process knows.
func (l *life) found(key string) item {
	if i := l.r.Get(key); i != nil {
		return *i
	}
	return none()
}

// open is the start of a process: what it finds is one of the possible states.
func (l *life) open() {
	l.Helper()
	l.r = openItems(l.T, l.dir)
	for key, may := range l.may {
		got := l.found(key)
		if !slices.Contains(may, got) {
			l.Fatalf("%s\n%s: found %+v, may be %+v", strings.Join(l.story, "\n"), key, got, may)
		}
		l.now[key], l.may[key] = got, []item{got}
	}
	if left, _ := filepath.Glob(filepath.Join(l.dir, "*", "*"+Draft)); len(left) > 0 {
		l.Fatalf("%s\nleft: %v", strings.Join(l.story, "\n"), left)
	}
}

// does one deed, of which a step may fail, and records which states are now possible.
func (l *life) does(deed string, v item, fails bool) {
	l.Helper()
	v.Boot, v.Format = "1", 1
	want := v
	var err error
	switch deed {
	case "put":
		err = l.r.Put(&v)
	case "settle":
		err = l.r.Settle(&v)
	case "drop":
		err, want = l.r.Drop(v.Key), none()
	}
	l.story = append(l.story, fmt.Sprintf("%s %+v: %v", deed, v, err))
	switch {
	case err != nil && !fails:
		l.Fatalf("%s", strings.Join(l.story, "\n"))
	case err == nil:
		l.now[v.Key] = want
	}
	l.may[v.Key] = mayFind(deed, slices.Clone(l.may[v.Key]), want, fails, err)
	if got := l.found(v.Key); got != l.now[v.Key] {
		l.Fatalf("%s\nknown %+v, want %+v", strings.Join(l.story, "\n"), got, l.now[v.Key])
	}
}

// mayFind returns what a new process may find if one of old could exist before, and a deed has put want, or failed.
func mayFind(deed string, old []item, want item, fails bool, err error) []item {
	may := append(old, want)
	if err == nil && (deed != "settle" || !fails) {
		return []item{want}
	}
	if deed != "settle" {
		return may
	}
	for _, i := range slices.Clone(may) {
		if i != none() {
			may = append(may, *items().Uncertain(&i))
		}
	}
	if err != nil {
		return may
	}
	// A record that could not be settled for lack of space still exists, and is not trusted.
	return slices.DeleteFunc(may, func(i item) bool { return i != want && (i == none() || i.Done) })
}

// TestLives: processes that are killed at any step, and disks on which any step fails, leave the record from before a
// deed or the one from after it; what a record in doubt says to be done is not trusted.
func TestLives(t *testing.T) {
	for seed := range uint64(25) {
		random := rand.New(rand.NewPCG(seed, 0))
		l := &life{T: t, dir: t.TempDir(), now: map[string]item{}, may: map[string][]item{"a/1": {none()}, "b/2": {none()}}}
		l.open()
		for n := range 40 {
			step, at, kills := 0, random.IntN(8), random.IntN(3) == 0
			l.r.disk.before = func(what, path string) error {
				step++
				if step == at || kills && step > at && at > 0 {
					l.story = append(l.story, fmt.Sprintf("fails: %s %s", what, path))
					return unix.ENOSPC
				}
				return nil
			}
			deed := []string{"put", "settle", "drop"}[random.IntN(3)]
			l.does(deed, item{Key: []string{"a/1", "b/2"}[random.IntN(2)], Value: n + 1, Done: random.IntN(2) == 0}, at > 0)
			if kills {
				l.open()
				l.story = append(l.story, "a new process")
			}
		}
	}
}
