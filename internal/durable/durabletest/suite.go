// Package durabletest has the tests that every kind of durable.Records must pass.
package durabletest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
)

const boot = "this boot"

// Records tests a kind of records with two records of different paths. The first one must describe
// something that is done, so that it differs from its Uncertain copy.
func Records[T any](t *testing.T, kind durable.Kind[T], first, second *T) {
	s := func(t *testing.T) *suite[T] {
		w := &suite[T]{
			T: t, kind: kind, dir: filepath.Join(t.TempDir(), "records"), one: kind.Clone(first), two: kind.Clone(second),
		}
		w.open(boot)
		w.must(w.all.Put(w.one))
		return w
	}
	for name, test := range map[string]func(*suite[T]){
		"kept":                  (*suite[T]).kept,
		"copies":                (*suite[T]).copies,
		"for their owner only":  (*suite[T]).forTheirOwnerOnly,
		"torn":                  (*suite[T]).torn,
		"no record":             (*suite[T]).noRecord,
		"unknown fields":        (*suite[T]).unknownFields,
		"newer":                 (*suite[T]).newer,
		"not to be read":        (*suite[T]).notToBeRead,
		"no directory":          (*suite[T]).noDirectory,
		"unfinished":            (*suite[T]).unfinished,
		"another boot":          (*suite[T]).anotherBoot,
		"no room":               (*suite[T]).noRoom,
		"settled without room":  (*suite[T]).settled,
		"newer than the doubt":  (*suite[T]).newerThanTheDoubt,
		"dropped when in doubt": (*suite[T]).droppedInDoubt,
	} {
		t.Run(name, func(t *testing.T) { test(s(t)) })
	}
}

// suite is one test, which begins with the first record in the directory.
type suite[T any] struct {
	*testing.T
	kind     durable.Kind[T]
	dir      string
	all      *durable.Records[T]
	one, two *T
}

func (s *suite[T]) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// open opens the directory as a new process does, and returns the quarantined files.
func (s *suite[T]) open(boot string) []string {
	s.Helper()
	all, aside, err := durable.OpenRecords(s.dir, boot, s.kind)
	s.must(err)
	s.all = all
	return aside
}

func (s *suite[T]) path(v *T) string {
	s.Helper()
	path, err := s.kind.Path(v)
	s.must(err)
	return path
}

func (s *suite[T]) file(v *T) string { return filepath.Join(s.dir, s.path(v)+".json") }

// names returns the files in the directory, without those in quarantine.
func (s *suite[T]) names() []string {
	s.Helper()
	var out []string
	s.must(filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Base(filepath.Dir(path)) != durable.Quarantine {
			out = append(out, path)
		}
		return err
	}))
	return out
}

// has requires that there are exactly these records, now and for a new process of this boot.
func (s *suite[T]) has(want ...*T) {
	s.Helper()
	for _, v := range want {
		if diff := cmp.Diff(v, s.all.Get(s.path(v))); diff != "" {
			s.Fatalf("(-want +got):\n%s", diff)
		}
	}
	if n := len(s.all.List(func(*T) bool { return true })); n != len(want) {
		s.Fatalf("%d records, want %d", n, len(want))
	}
}

func (s *suite[T]) kept() {
	s.must(s.all.Put(s.two))
	s.must(s.all.Put(s.two))
	s.has(s.one, s.two)
	if aside := s.open(boot); len(aside) > 0 {
		s.Errorf("aside: %v", aside)
	}
	s.has(s.one, s.two)
	for range 2 {
		s.must(s.all.Drop(s.path(s.one)))
		s.has(s.two)
	}
	s.open(boot)
	s.has(s.two)
	s.must(s.all.Drop(s.path(s.two)))
	s.must(s.all.Drop("never"))
	if left := s.names(); len(left) > 0 {
		s.Errorf("left: %v", left)
	}
}

// copies: a change of a returned record does not change the stored one.
func (s *suite[T]) copies() {
	want := s.kind.Clone(s.one)
	*s.kind.Boot(s.one) = "changed"
	*s.kind.Boot(s.all.Get(s.path(s.one))) = "changed"
	for _, v := range s.all.List(func(*T) bool { return true }) {
		*s.kind.Boot(v) = "changed"
	}
	s.has(want)
}

func (s *suite[T]) forTheirOwnerOnly() {
	for path, want := range map[string]os.FileMode{
		s.dir: 0o700, filepath.Dir(s.file(s.one)): 0o700, s.file(s.one): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			s.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
}

// torn: a truncated file is moved to quarantine, and other records are not affected.
func (s *suite[T]) torn() {
	s.must(s.all.Put(s.two))
	whole, err := os.ReadFile(s.file(s.one))
	s.must(err)
	for n := range whole {
		s.must(os.WriteFile(s.file(s.one), whole[:n], 0o600))
		aside := s.open(boot)
		s.has(s.two)
		if len(aside) != 1 || filepath.Dir(aside[0]) != filepath.Join(s.dir, durable.Quarantine) {
			s.Fatalf("torn to %d bytes: aside %v", n, aside)
		}
		if kept, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(kept, whole[:n]) {
			s.Fatalf("torn to %d bytes: what was moved aside changed: %v", n, err)
		}
		s.must(os.Remove(aside[0]))
	}
}

// noRecord: a file that is not a record is moved to quarantine; one that is only long is read.
// Files in quarantine do not replace each other.
func (s *suite[T]) noRecord() {
	path := s.file(s.one)
	whole, err := os.ReadFile(path)
	s.must(err)
	var fields map[string]any
	s.must(json.Unmarshal(whole, &fields))
	with := func(format any) []byte {
		fields["format"] = format
		data, err := json.Marshal(fields)
		s.must(err)
		return data
	}
	long := func(size int64) []byte {
		return append(slices.Clone(whole), bytes.Repeat([]byte(" "), int(size)-len(whole))...)
	}
	aside := 0
	for _, c := range []struct {
		argues string
		path   string
		data   []byte
		read   bool
	}{
		{"of no format", path, with(0), false},
		{"of a format that is not a number", path, with("one"), false},
		{"of nothing", path, fmt.Appendf(nil, `{"format":%d}`, s.kind.Format), false},
		{"null", path, []byte("null"), false},
		{"longer than any", path, long(s.kind.Most + 1), false},
		{"as long as one may be", path, long(s.kind.Most), true},
		{"another's", filepath.Join(filepath.Dir(path), "other.json"), whole, false},
		{"in another directory", filepath.Join(s.dir, "other", filepath.Base(path)), whole, false},
	} {
		s.must(os.RemoveAll(path))
		s.must(os.MkdirAll(filepath.Dir(c.path), 0o700))
		s.must(os.WriteFile(c.path, c.data, 0o600))
		moved := s.open(boot)
		if read := s.all.Get(s.path(s.one)) != nil; read != c.read || len(moved) > 0 == c.read {
			s.Errorf("%s: read %v, aside %v", c.argues, read, moved)
		}
		aside += len(moved)
	}
	s.must(os.RemoveAll(path))
	s.must(unix.Mkfifo(path, 0o600))
	aside += len(s.open(boot))
	left, err := os.ReadDir(filepath.Join(s.dir, durable.Quarantine))
	if err != nil || len(left) != aside || aside != 8 {
		s.Errorf("%d moved aside, kept %v, %v", aside, left, err)
	}
}

func (s *suite[T]) unknownFields() {
	whole, err := os.ReadFile(s.file(s.one))
	s.must(err)
	s.must(os.WriteFile(s.file(s.one), bytes.Replace(whole, []byte("{"), []byte(`{"unknown":{"a":[1]},`), 1), 0o600))
	s.open(boot)
	s.has(s.one)
}

// newer: a record of a newer format prevents the start, whatever else is in it, and no file is
// changed.
func (s *suite[T]) newer() {
	other := filepath.Join(filepath.Dir(s.file(s.one)), "zz")
	for _, rest := range []string{``, `,"record":"of another kind"`, `,"kind":[1]`} {
		files := map[string]string{
			s.file(s.one):         fmt.Sprintf(`{"format":%d%s}`, s.kind.Format+1, rest),
			other + ".json":       "{",
			other + durable.Draft: "{",
		}
		for path, text := range files {
			s.must(os.WriteFile(path, []byte(text), 0o600))
		}
		_, _, err := durable.OpenRecords(s.dir, boot, s.kind)
		if !errors.Is(err, durable.ErrNewer) || !strings.Contains(err.Error(), s.file(s.one)) {
			s.Errorf("opened: %v", err)
		}
		for path, text := range files {
			if got, err := os.ReadFile(path); err != nil || string(got) != text {
				s.Errorf("%s: %q, %v", path, got, err)
			}
		}
	}
}

// notToBeRead: what cannot be read costs its own record and no other, wherever it must stay.
func (s *suite[T]) notToBeRead() {
	s.must(s.all.Put(s.two))
	path, quarantine := s.file(s.one), filepath.Join(s.dir, durable.Quarantine)
	for _, c := range []struct {
		argues  string
		prepare func()
		// kept says that the record is read all the same, stays that the file cannot be moved.
		kept, stays bool
	}{
		{argues: "a directory in the place of a record", prepare: func() {
			s.must(os.MkdirAll(filepath.Join(path, "x"), 0o700))
		}},
		{argues: "a link that leads nowhere", prepare: func() { s.must(os.Symlink("nowhere", path)) }},
		{argues: "a link to another record", prepare: func() { s.must(os.Symlink(s.file(s.two), path)) }},
		{argues: "a directory in the place of a draft", kept: true, prepare: func() {
			s.must(s.all.Put(s.one))
			s.must(os.MkdirAll(filepath.Join(path+durable.Draft, "x"), 0o700))
		}},
		{argues: "a quarantine that is full", stays: true, prepare: func() {
			s.must(os.WriteFile(path, []byte("{"), 0o600))
			s.must(os.MkdirAll(quarantine, 0o700))
			for n := range 1000 {
				s.must(os.WriteFile(filepath.Join(quarantine, fmt.Sprintf("%s.%d", filepath.Base(path), n)), nil, 0o600))
			}
		}},
		{argues: "a file in the place of the quarantine", stays: true, prepare: func() {
			s.must(os.Symlink("nowhere", path))
			s.must(os.WriteFile(quarantine, nil, 0o600))
		}},
	} {
		s.must(os.RemoveAll(quarantine))
		s.must(os.RemoveAll(path))
		c.prepare()
		all, aside, err := durable.OpenRecords(s.dir, boot, s.kind)
		if err != nil || len(aside) != 1 || (filepath.Dir(aside[0]) != quarantine) != c.stays {
			s.Errorf("%s: aside %v, %v", c.argues, aside, err)
			continue
		}
		if _, err := os.Lstat(aside[0]); err != nil {
			s.Errorf("%s: %v", c.argues, err)
		}
		if all.Get(s.path(s.two)) == nil || (all.Get(s.path(s.one)) != nil) != c.kept {
			s.Errorf("%s: has %v", c.argues, all.List(func(*T) bool { return true }))
		}
	}
}

// noDirectory: without their directory nothing is known about any record.
func (s *suite[T]) noDirectory() {
	s.must(os.RemoveAll(s.dir))
	s.must(os.WriteFile(s.dir, nil, 0o600))
	if all, aside, err := durable.OpenRecords(s.dir, boot, s.kind); err == nil || all != nil || aside != nil {
		s.Errorf("opened with %v aside, %v", aside, err)
	}
}

// unfinished: if there is only a draft of a new record, the old record counts.
func (s *suite[T]) unfinished() {
	draft := s.file(s.one) + durable.Draft
	s.must(os.WriteFile(draft, []byte(`{"format":1,"rec`), 0o600))
	if aside := s.open(boot); len(aside) > 0 {
		s.Errorf("aside: %v", aside)
	}
	s.has(s.one)
	if _, err := os.Stat(draft); !os.IsNotExist(err) {
		s.Error("the draft stays", err)
	}
}

func (s *suite[T]) anotherBoot() {
	uncertain := s.kind.Uncertain(s.one)
	*s.kind.Boot(uncertain) = "another boot"
	s.open("another boot")
	s.has(uncertain)
	s.must(s.all.Put(s.one))
	if *s.kind.Boot(s.one) != "another boot" {
		s.Errorf("written as of %q", *s.kind.Boot(s.one))
	}
	s.open("another boot")
	s.has(s.one)
}

// block makes writes of a record fail, as a full disk does, until free is called.
func (s *suite[T]) block(v *T) (free func()) {
	s.Helper()
	draft := s.file(v) + durable.Draft
	s.must(os.MkdirAll(filepath.Join(draft, "x"), 0o700))
	return func() { s.must(os.RemoveAll(draft)) }
}

func (s *suite[T]) noRoom() {
	uncertain := s.kind.Uncertain(s.one)
	if cmp.Equal(uncertain, s.one) {
		s.Fatal("in doubt, the record says the same: nothing would be seen here")
	}
	free := s.block(s.one)
	if err := s.all.Put(uncertain); err == nil {
		s.Error("no error")
	}
	s.has(s.one)
	free()
	s.open(boot)
	s.has(s.one)
	// A record that was never written cannot be put in doubt.
	s.block(s.two)
	if err := s.all.Settle(s.two); err == nil {
		s.Error("no error")
	}
	s.has(s.one)
}

// settled: nothing is written, and the existing record is not trusted after a crash.
func (s *suite[T]) settled() {
	s.must(s.all.Settle(s.one))
	s.open(boot)
	s.has(s.one)
	uncertain := s.kind.Uncertain(s.one)
	for range 2 {
		free := s.block(s.one)
		for range 2 {
			s.must(s.all.Settle(s.one))
			s.has(s.one)
		}
		free()
		s.open(boot)
		s.has(uncertain)
		s.open(boot)
		s.has(uncertain)
		s.must(s.all.Put(s.one))
		if names := s.names(); len(names) != 1 {
			s.Errorf("files: %v", names)
		}
		s.open(boot)
		s.has(s.one)
	}
}

// newerThanTheDoubt: a crash can leave a record in doubt beside the one that has replaced it.
func (s *suite[T]) newerThanTheDoubt() {
	data, err := os.ReadFile(s.file(s.one))
	s.must(err)
	s.must(os.WriteFile(filepath.Join(s.dir, s.path(s.one)+".doubt.json"), data, 0o600))
	if aside := s.open(boot); len(aside) > 0 {
		s.Errorf("aside: %v", aside)
	}
	s.has(s.one)
	if names := s.names(); len(names) != 1 {
		s.Errorf("files: %v", names)
	}
}

func (s *suite[T]) droppedInDoubt() {
	free := s.block(s.one)
	s.must(s.all.Settle(s.one))
	s.must(s.all.Drop(s.path(s.one)))
	s.has()
	if err := s.all.Settle(s.one); err == nil {
		s.Error("settled without a file")
	}
	s.has()
	free()
	if names := s.names(); len(names) > 0 {
		s.Errorf("files: %v", names)
	}
}
