package install

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// tree writes a driver of several files, which says what its library says.
func (w *pluginHost) tree(version string) string {
	w.Helper()
	dir := filepath.Join(w.dir, "tree-"+version)
	err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "lib"), 0o755),
		os.WriteFile(filepath.Join(dir, "demo"), []byte("#!/bin/sh\n. \"$(dirname \"$0\")/lib/answer\"\n"), 0o755),
		os.WriteFile(filepath.Join(dir, "lib", "answer"),
			[]byte("echo '{\"status\":\"Success\",\"message\":\""+version+"\",\"capabilities\":{\"attach\":false}}'\n"), 0o644),
	)
	if err != nil {
		w.Fatal(err)
	}
	return dir
}

func (w *pluginHost) answers() string {
	w.Helper()
	out, err := exec.Command(w.exe(), "init").CombinedOutput()
	if err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	_, rest, _ := strings.Cut(string(out), `"message":"`)
	version, _, _ := strings.Cut(rest, `"`)
	return version
}

func (w *pluginHost) payloads() int {
	w.Helper()
	all, err := filepath.Glob(filepath.Join(w.dir, "kubelet", "flex-payload", "*", "*"))
	if err != nil {
		w.Fatal(err)
	}
	return len(all)
}

// TestPayload: a driver of several files changes as a whole, and costs the host
// one file.
func TestPayload(t *testing.T) {
	w := newPluginHost(t)
	for i, version := range []string{"1", "2", "3", "4"} {
		o := w.options(w.tree(version))
		r, err := w.change(o).install(t.Context())
		if err != nil || w.answers() != version || r.Payload == "" {
			t.Fatalf("%v, answers %s, report %+v", err, w.answers(), r)
		}
		if n := w.payloads(); n != min(i+1, 2) {
			t.Errorf("%d versions are kept", n)
		}
		if r, err = Install(t.Context(), o); err != nil || r.Deed != Unchanged {
			t.Errorf("%s, %v", r.Deed, err)
		}
	}
	for _, version := range []string{"3", "4"} {
		if _, err := Rollback(t.Context(), w.options("")); err != nil || w.answers() != version {
			t.Errorf("%v, answers %s", err, w.answers())
		}
	}
	w.endPayload()
}

// endPayload tries to install what is refused, and uninstalls version 4.
func (w *pluginHost) endPayload() {
	w.Helper()
	if files, err := os.ReadDir(filepath.Dir(w.exe())); err != nil || len(files) != 1 {
		w.Errorf("%d files in the driver's directory, %v", len(files), err)
	}
	// What is refused leaves nothing.
	bad := w.tree("5")
	if err := os.WriteFile(filepath.Join(bad, "lib", "answer"), []byte("echo oops >&2\n"), 0o644); err != nil {
		w.Fatal(err)
	}
	if _, err := Upgrade(w.Context(), w.options(bad)); !errors.Is(err, ErrRefused) || w.payloads() != 2 ||
		w.answers() != "4" {
		w.Errorf("%v, %d versions are kept, answers %s", err, w.payloads(), w.answers())
	}
	if _, err := Uninstall(w.Context(), w.options("")); err != nil || w.payloads() != 0 {
		w.Errorf("%v, %d versions are kept", err, w.payloads())
	}
}

// TestPayloadRefused: nothing in it leads out of it, and the driver is in it.
func TestPayloadRefused(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(dir string) error
		want string
	}{
		"link out": {func(d string) error { return os.Symlink("../../etc", filepath.Join(d, "lib", "etc")) }, "leads out"},
		"link out by way of another": {func(d string) error {
			return errors.Join(os.MkdirAll(filepath.Join(d, "a", "b"), 0o755),
				os.Symlink("../..", filepath.Join(d, "a", "b", "up")),
				os.Symlink("up/../../tmp", filepath.Join(d, "a", "b", "out")),
				os.MkdirAll(filepath.Join(filepath.Dir(filepath.Dir(d)), "tmp"), 0o755))
		}, "leads out"},
		"absolute link": {func(d string) error { return os.Symlink("/etc", filepath.Join(d, "etc")) }, "leads out"},
		"no driver": {
			func(d string) error { return os.Rename(filepath.Join(d, "demo"), filepath.Join(d, "other")) }, "no executable demo",
		},
		"special file": {func(d string) error {
			return exec.Command("mkfifo", filepath.Join(d, "pipe")).Run()
		}, "special file"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPluginHost(t)
			dir := w.tree("1")
			if err := c.harm(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := Install(t.Context(), w.options(dir)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
			if w.payloads() != 0 || w.names() != "" {
				t.Errorf("%d versions are kept, there is %s", w.payloads(), w.names())
			}
		})
	}
}
