package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// TestHostileDriversAreNeverCalled: a file that a user other than root could have put
// there, or that has no valid name, is shown with a reason and not executed.
func TestHostileDriversAreNeverCalled(t *testing.T) {
	t.Parallel()
	at := func(r *rig, elem ...string) string { return filepath.Join(append([]string{r.Dir}, elem...)...) }
	for _, c := range []struct {
		dir, why string
		spoil    func(r *rig) error
	}{
		{"lofs", "by others than root", func(r *rig) error { return os.Chmod(at(r, "lofs/lofs"), 0o777) }},
		{"lofs", "by others than root", func(r *rig) error { return os.Chmod(at(r, "lofs"), 0o777) }},
		{"lofs", "by others than root", func(r *rig) error {
			return errors.Join(os.Chown(at(r, "lofs"), 0, 50), os.Chmod(at(r, "lofs"), 0o775))
		}},
		{"lofs", "by others than root", func(r *rig) error { return os.Chmod(r.Dir, 0o777) }},
		{"lofs", "belongs to user 1000", func(r *rig) error { return os.Chown(at(r, "lofs/lofs"), 1000, 0) }},
		{"lofs", "belongs to user 1000", func(r *rig) error { return os.Chown(at(r, "lofs"), 1000, 0) }},
		{"lofs", "setuid", func(r *rig) error { return os.Chmod(at(r, "lofs/lofs"), 0o755|os.ModeSetuid) }},
		{"lofs", "setuid or setgid", func(r *rig) error { return os.Chmod(at(r, "lofs/lofs"), 0o755|os.ModeSetgid) }},
		{"lofs", "not executable", func(r *rig) error { return os.Chmod(at(r, "lofs/lofs"), 0o644) }},
		{"lofs", "leads out of the plugin directory", func(r *rig) error {
			return errors.Join(os.Rename(at(r, "lofs/lofs"), filepath.Join(r.root, "x")),
				os.Symlink("../../x", at(r, "lofs/lofs")))
		}},
		{"lofs", "leads out of the plugin directory", func(r *rig) error {
			return errors.Join(os.Rename(at(r, "lofs"), filepath.Join(r.root, "x")), os.Symlink("../x", at(r, "lofs")))
		}},
		{"lofs", "leads nowhere", func(r *rig) error {
			return errors.Join(os.Remove(at(r, "lofs/lofs")), os.Symlink("lofs", at(r, "lofs/lofs")))
		}},
		{"lofs", "belongs to user 1000", func(r *rig) error {
			return errors.Join(os.Rename(at(r, "lofs"), at(r, ".x")), os.Chown(at(r, ".x"), 1000, 0),
				os.Symlink(".x", at(r, "lofs")))
		}},
		{"lofs", "is not a file", func(r *rig) error {
			return errors.Join(os.Remove(at(r, "lofs/lofs")), syscall.Mkfifo(at(r, "lofs/lofs"), 0o755))
		}},
		{"lofs", "is not a file", func(r *rig) error {
			return errors.Join(os.Remove(at(r, "lofs/lofs")), os.Mkdir(at(r, "lofs/lofs"), 0o755))
		}},
		{"a~b~c", "not the name", nil},
		{"Example.com~lofs", "not the name", nil},
		{"a..b~lofs", "not the name", nil},
		{"example.com~lo fs", "not the name", nil},
		{"example.com~lo\nfs", "not the name", nil},
		{"example.com~lo'\";fs", "not the name", nil},
		{"example.com~\xff\xfe", "not the name", nil},
	} {
		for _, early := range []bool{true, false} {
			neverCalled(t, c.dir, c.why, early, c.spoil)
		}
	}
}

// neverCalled installs a driver that spoil spoils, before the host is started or
// while it may be in use.
func neverCalled(t *testing.T, dir, why string, early bool, spoil func(*rig) error) {
	t.Helper()
	r := newRig(t)
	if !early {
		r.start()
	}
	r.install(dir, r.script("hostile", mountOnly))
	if spoil != nil {
		if !early {
			r.ready("lofs")
		}
		r.try(spoil(r))
	}
	if early {
		r.start()
	}
	before := r.called("hostile")
	var s State
	r.eventually("it is refused because it "+why, func() bool {
		list := r.List()
		if len(list) != 1 {
			return false
		}
		s = list[0]
		return s.State == decide.Broken && strings.Contains(s.Message, why)
	})
	if s.Reason != "FlexDriverRefused" || strings.ContainsFunc(s.Name+s.Message, unprintable) {
		t.Errorf("%s: %+v", why, s)
	}
	r.end()
	if n := r.called("hostile"); n != before || early && n > 0 {
		t.Errorf("%s: called %d times, then %d", why, before, n)
	}
}

func unprintable(c rune) bool { return !unicode.IsPrint(c) || c == utf8.RuneError }
