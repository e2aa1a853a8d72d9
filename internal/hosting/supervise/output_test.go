package supervise

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOutputIsBounded: a program that prints without end fills no disk.
func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	const most = 64 << 10
	w := newSupervised(t, func(o *Options) { o.keptOutput = most })
	log := OutputPath(w.s.Dir, w.name())
	size := func(path string) int64 {
		st, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return st.Size()
	}
	// It prints as much as is kept with each of its words.
	p := w.script(`
while read -r line; do head -c ` + "70000" + ` /dev/zero | tr '\0' x; echo; echo "$line"; echo "$line" >>said; done <words`)
	words := filepath.Join(w.dir, "words")
	if err := os.WriteFile(words, []byte(strings.Repeat("word\n", 3)), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Argv = append(p.Argv, "x")
	w.run(p)
	w.hears(3)
	eventually(t, "the log is small again", func() bool {
		return size(log) <= most && size(olderOutput(log)) > 0 && size(olderOutput(log)) <= most
	})
	if st, err := os.Stat(olderOutput(log)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestTrim(t *testing.T) {
	t.Parallel()
	const most = 100 << 10
	path := filepath.Join(t.TempDir(), "log")
	f, err := openOutput(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// It starts with what a program has printed while it was not supervised.
	text := strings.Repeat("early\n", most) + "late\n"
	for _, print := range []string{text, "next\n"} {
		if _, err := f.WriteString(print); err != nil {
			t.Fatal(err)
		}
		if err := trim(f, most); err != nil {
			t.Fatal(err)
		}
	}
	older, errOlder := os.ReadFile(olderOutput(path))
	now, errNow := os.ReadFile(path)
	if string(older) != text[len(text)-most:] || string(now) != "next\n" || errOlder != nil || errNow != nil {
		t.Errorf("kept are %d and %d bytes, %v, %v", len(older), len(now), errOlder, errNow)
	}
}

// TestTrimHostile: a hole is not output, and a link is not accepted as a log.
func TestTrimHostile(t *testing.T) {
	t.Parallel()
	const most = 100 << 10
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Truncate(path, 10*most), look((&watches{}).watch(), path, most)); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != 10*most {
		t.Errorf("a log with a hole: %v, %v", st.Size(), err)
	}
	if err := errors.Join(os.Rename(path, path+".moved"), os.Symlink(path+".moved", path)); err != nil {
		t.Fatal(err)
	}
	if err := look((&watches{}).watch(), path, most); err == nil {
		t.Error("a link was followed")
	}
}

func TestLastLine(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse-battery"
	p := Program{Env: []string{"PASSWORD=" + secret, "ENDPOINT=unix:///run/x.sock", "PATH=/usr/bin:/bin", "SHORT=no"}}
	long := strings.Repeat("x", 1000) + "end"
	for text, want := range map[string]string{
		"":                          "",
		"\n\n":                      "",
		"one":                       "one",
		"one\ntwo\n":                "two",
		"one\n  two \t\n\n":         "two",
		"a\tb\x1b[31mred\x00\x7f\n": "a b[31mred",
		"\xff\xfe ok":               "? ok",
		long:                        "..." + long[len(long)-300:],
		"listen unix:///run/x.sock": "listen unix:///run/x.sock",
		"exec /usr/bin/x: no":       "exec /usr/bin/x: no",
		"login failed: " + secret:   "login failed: ***",
		"login " + base64.StdEncoding.EncodeToString([]byte(secret)): "login ***",
	} {
		if got := lastOf([]byte(text), p.secrets()); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestSecrets: what the environment has is in no record and no log of the supervisor, even if the program prints it.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse-battery"
	w := newSupervised(t)
	p := w.script(`echo "password $PASSWORD"; exit 1`)
	p.Env = append(p.Env, "PASSWORD="+secret)
	w.run(p)
	r := w.until("it was started", func(r Record) bool { return r.Restarts > 2 })
	w.halt()
	if r.LastLine != "password ***" {
		t.Errorf("%+v", r)
	}
	data, err := os.ReadFile(recordPath(w.s.Dir, p.Name))
	if err != nil || strings.Contains(string(data), secret) || strings.Contains(w.log.String(), secret) {
		t.Errorf("the secret is in the record %s, or in the log %s; %v", data, w.log, err)
	}
	if st, err := os.Stat(recordPath(w.s.Dir, p.Name)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// TestQuietProgram: nothing wakes a supervisor whose program prints nothing, and its first output does, although there
// was no log before.
func TestQuietProgram(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	all := newWatches()
	defer all.close()
	w := all.watch()
	defer w.close()
	if err := look(w, path, keptOutput); err != nil || len(w.armed) != 1 {
		t.Fatalf("%v, armed %v", err, w.armed)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.next(ctx); err == nil {
		t.Error("woken without a change")
	}
	f, err := openOutput(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if err := w.next(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestWatchesAreShared: who waits for the same file, or for another one, is woken by its changes only, as long as it
// waits.
func TestWatchesAreShared(t *testing.T) {
	t.Parallel()
	all := newWatches()
	defer all.close()
	dir := t.TempDir()
	one, two, other := all.watch(), all.watch(), all.watch()
	one.set(unix.IN_CREATE, dir)
	two.set(unix.IN_MOVED_TO, dir)
	other.set(unix.IN_CREATE, t.TempDir(), filepath.Join(dir, "none"))
	woken := func() (out [3]bool) {
		for i, w := range []*watch{one, two, other} {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			out[i] = w.next(ctx) == nil
			cancel()
		}
		return out
	}
	touch := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	touch("a")
	if got := woken(); got != [3]bool{true, true, false} {
		t.Errorf("woken: %v", got)
	}
	two.close()
	touch("b")
	if got := woken(); got != [3]bool{true, false, false} {
		t.Errorf("woken after the second has gone: %v", got)
	}
	one.close()
	other.close()
	if len(all.by) != 0 {
		t.Errorf("watched still: %v", all.by)
	}
}

// TestWatchesAreLost: a change that the kernel could not report wakes all watches, and a deleted file is forgotten.
func TestWatchesAreLost(t *testing.T) {
	t.Parallel()
	all := newWatches()
	defer all.close()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := all.watch()
	w.set(unix.IN_MODIFY, path)
	all.wake(-1, unix.IN_Q_OVERFLOW)
	if err := w.next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := w.next(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.close()
	if len(all.by) != 0 {
		t.Errorf("watched still: %v", all.by)
	}
}
