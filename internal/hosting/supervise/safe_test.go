package supervise

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	const file, dir, link = unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK
	for _, c := range []struct {
		mode, owner uint32
		want        string
	}{
		{file | 0o755, 0, ""},
		{file | 0o755, 7, ""},
		{file | 0o755, 8, "others can write it: /p belongs to user 8: chown -h root /p"},
		{file | 0o775, 0, "others can write it: /p: chmod go-w /p"},
		{file | 0o757, 0, "others can write it: /p: chmod go-w /p"},
		{file | 0o1757, 0, "others can write it: /p: chmod go-w /p"},
		{dir | 0o755, 0, ""},
		{dir | 0o775, 0, "others can write it: /p: chmod go-w /p"},
		{dir | 0o1777, 0, ""},
		{dir | 0o1777, 8, "others can write it: /p belongs to user 8: chown -h root /p"},
		{link | 0o777, 0, ""},
		{link | 0o777, 8, "others can write it: /p belongs to user 8: chown -h root /p"},
	} {
		got := ""
		if err := verdict("/p", c.mode, c.owner, 7); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("mode %o of user %d: %q, want %q", c.mode, c.owner, got, c.want)
		}
	}
}

// TestCheckSafe: each directory and link on the way is checked.
func TestCheckSafe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(path string) string { return filepath.Join(dir, path) }
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(at("good/bin"), 0o755), os.MkdirAll(at("open/bin"), 0o755), os.Chmod(at("open"), 0o777))
	must(os.MkdirAll(at("sticky"), 0o755), os.Chmod(at("sticky"), 0o777|os.ModeSticky))
	for _, path := range []string{"good/bin/x", "open/bin/x", "sticky/x", "sticky/foreign"} {
		must(os.WriteFile(at(path), nil, 0o755))
	}
	must(os.Chown(at("sticky/foreign"), 1234, 1234))
	must(os.Symlink("../open/bin/x", at("good/relative")), os.Symlink(at("open/bin/x"), at("good/absolute")))
	must(os.Symlink("bin/../bin//x", at("good/fine")), os.Symlink("../good", at("open/leads")))
	must(os.Symlink("../good/bin/x", at("sticky/link")), os.Lchown(at("sticky/link"), 1234, 1234))
	for path, bad := range map[string]string{
		"good/bin/x": "", "good/fine": "", "sticky/x": "", "good/./bin/../bin/x": "",
		"open/bin/x": "open", "good/relative": "open", "good/absolute": "open", "open/leads/bin/x": "open",
		"sticky/foreign": "sticky/foreign", "sticky/link": "sticky/link",
	} {
		err := checkSafe(dir + "/" + path)
		refused := errors.Is(err, ErrUnsafe) && strings.HasSuffix(err.Error(), " "+at(bad))
		if bad == "" && err != nil || bad != "" && !refused {
			t.Errorf("%s: %v, want a refusal of %q", path, err, bad)
		}
	}
}

// TestUnsafePrograms are not started, whatever it is that others can write.
func TestUnsafePrograms(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	open := filepath.Join(w.dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	sh := filepath.Join(open, "sh")
	if err := errors.Join(os.Symlink("/bin/sh", sh)); err != nil {
		t.Fatal(err)
	}
	script := w.script("exit")
	if err := os.WriteFile(script.Argv[0], []byte("#!"+sh+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]Program{
		"program":     {Name: w.name(), Argv: []string{sh}},
		"interpreter": script,
	} {
		w.run(p)
		r := w.until("it cannot start", func(r Record) bool { return r.State == CannotStart && r.Hash == p.hash() })
		if want := "others can write it: " + open + ": chmod go-w " + open; r.Message != want {
			t.Errorf("%s: %q, want %q", name, r.Message, want)
		}
	}
	o := w.s.Options
	o.Dir = filepath.Join(open, "state")
	if _, err := Open(t.Context(), o); !errors.Is(err, ErrUnsafe) {
		t.Errorf("Open: %v", err)
	}
}
