package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// TestWhoCouldPutItThere: a driver is not executed when others than root could
// have another one found in its place, on the way to the plugin directory or by
// another name of the file.
func TestWhoCouldPutItThere(t *testing.T) {
	t.Parallel()
	const other = 12345
	for name, c := range map[string]struct {
		dir    func(base string) (string, []error)
		reason string
	}{
		"root's alone": {func(base string) (string, []error) { return base + "/a/b/exec", nil }, ""},
		"all may write": {
			func(base string) (string, []error) { return base + "/a/b/exec", []error{os.Chmod(base+"/a", 0o777)} },
			"can be written to by others",
		},
		"sticky": {func(base string) (string, []error) {
			return base + "/a/b/exec", []error{os.Chmod(base+"/a", 0o777|os.ModeSticky)}
		}, ""},
		"another user's": {
			func(base string) (string, []error) { return base + "/a/b/exec", []error{os.Chown(base+"/a", other, 0)} },
			"belongs to user 12345",
		},
		"a link": {func(base string) (string, []error) {
			return base + "/link", []error{os.Symlink("a/b/exec", base+"/link")}
		}, ""},
		"a link on the way": {func(base string) (string, []error) {
			return base + "/link/exec", []error{os.Symlink(base+"/a/./../a/b", base+"/link")}
		}, ""},
		"another user's link": {func(base string) (string, []error) {
			return base + "/link/exec", []error{os.Symlink("a/b", base+"/link"), os.Lchown(base+"/link", other, 0)}
		}, "belongs to user 12345"},
		"a link by way of what all may write": {func(base string) (string, []error) {
			return base + "/link", []error{
				os.Mkdir(base+"/c", 0o700), os.Chmod(base+"/c", 0o777), os.Symlink("../a/b/exec", base+"/c/link"),
				os.Symlink("c/link", base+"/link"),
			}
		}, "can be written to by others"},
		"a name outside": {func(base string) (string, []error) {
			return base + "/a/b/exec", []error{os.Link(base+"/a/b/exec/t/t", base+"/name")}
		}, "a hard link"},
		"a name inside, as an installer gives it": {func(base string) (string, []error) {
			return base + "/a/b/exec", []error{
				os.Link(base+"/a/b/exec/t/t", base+"/a/b/exec/.t.keep"), os.Link(base+"/a/b/exec/t/t", base+"/a/b/exec/t/u"),
			}
		}, ""},
		"in a circle": {func(base string) (string, []error) {
			return base + "/a/b/exec", []error{os.Remove(base + "/a/b/exec/t/t"), os.Symlink("t", base+"/a/b/exec/t/t")}
		}, "leads nowhere"},
	} {
		base := t.TempDir()
		script(t, filepath.Join(base, "a/b/exec/t/t"), "#!/bin/sh\necho '{\"status\":\"Success\"}'\n")
		dir, errs := c.dir(base)
		for _, err := range errs {
			if err != nil {
				t.Fatal(name, err)
			}
		}
		all, err := Survey(t.Context(), dir)
		if err != nil || len(all) != 1 {
			t.Errorf("%s: %+v, %v", name, all, err)
			continue
		}
		want := decide.Ready
		if c.reason != "" {
			want = decide.Broken
		}
		if all[0].State != want || !strings.Contains(all[0].Message, c.reason) {
			t.Errorf("%s: %s: %s", name, all[0].State, all[0].Message)
		}
	}
}

// TestWayInACircle: a path that leads nowhere is an error, and is not followed
// forever.
func TestWayInACircle(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Symlink("b", filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a", filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if why, err := Diverted(filepath.Join(dir, "a", "c")); err == nil {
		t.Errorf("%q", why)
	}
}

// script writes an executable.
func script(t *testing.T, path, content string) {
	t.Helper()
	//nolint:gosec // it is to be run
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o700)); err != nil {
		t.Fatal(err)
	}
}
