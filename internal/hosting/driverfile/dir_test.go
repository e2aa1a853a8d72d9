package driverfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/volume"
)

func driver(name string) driverfile.Driver {
	return driverfile.Driver{
		APIVersion: driverfile.APIVersion, Kind: driverfile.Kind, Name: name,
		Processes: []driverfile.Process{{
			Roles: []driverfile.Role{driverfile.RoleController, driverfile.RoleNode}, Exec: []string{"/bin/" + name},
		}},
	}
}

func textOf(name string) string {
	return "apiVersion: volplane.dev/v1\nkind: Driver\nname: " + name +
		"\nprocesses:\n- roles: [controller, node]\n  exec: [/bin/" + name + "]\n"
}

// lay writes files below a new directory, which has the modes of a person's umask.
func lay(t *testing.T, files map[string]string) driverfile.Dir {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "drivers.d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return driverfile.Dir(dir)
}

// read returns the names of the drivers, and the errors by the names of files.
func read(d driverfile.Dir) (names []string, broken map[string]string) {
	all, errs := d.Read()
	for _, one := range all {
		names = append(names, one.Name)
	}
	broken = map[string]string{}
	for path, err := range errs {
		broken[strings.TrimPrefix(path, string(d)+"/")] = err.Error()
	}
	return names, broken
}

func TestRead(t *testing.T) {
	two := "apiVersion: volplane.dev/v1\nkind: Driver\nname: NAME\nprocesses:\n" +
		"- {roles: [node], exec: [/bin/x]}\n- {roles: [controller], exec: [/bin/x]}\n"
	for name, c := range map[string]struct {
		files  map[string]string
		names  []string
		broken map[string]string
	}{
		"nothing": {nil, nil, nil},
		"drivers": {map[string]string{"b.yaml": textOf("b"), "a.yml": textOf("a")}, []string{"a", "b"}, nil},
		"others' files": {
			map[string]string{
				"README": "x", "a.yaml.tmp": "x", "a.yaml~": "x", ".a.yaml.swp": "x", ".a.yaml": "x", "a.json": "x",
			}, nil, nil,
		},
		"one broken": {
			map[string]string{"a.yaml": "x: [", "b.yaml": textOf("b"), "_.yaml": textOf("_")},
			[]string{"b"},
			map[string]string{"a.yaml": "yaml: ", "_.yaml": "name: "},
		},
		"another name": {
			map[string]string{"a.yaml": textOf("b"), "b.yaml": textOf("b")},
			[]string{"b"},
			map[string]string{"a.yaml": "name: it is b in a file of a; write the same name to both"},
		},
		"the same driver": {
			map[string]string{"a.yaml": textOf("a"), "a.yml": textOf("a"), "b.yaml": textOf("b")},
			[]string{"b"},
			map[string]string{"a.yaml": "a.yml is about a process of the same name", "a.yml": "a.yaml is about"},
		},
		"the same process": {
			map[string]string{"a.yaml": strings.Replace(two, "NAME", "a", 1), "a-node.yaml": textOf("a-node")},
			nil,
			map[string]string{"a.yaml": "a-node.yaml is about a process of the same name", "a-node.yaml": "a.yaml is about"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			names, broken := read(lay(t, c.files))
			if !slices.Equal(names, c.names) {
				t.Errorf("drivers %q, want %q", names, c.names)
			}
			if len(broken) != len(c.broken) {
				t.Errorf("broken: %q", broken)
			}
			for file, want := range c.broken {
				if !strings.Contains(broken[file], want) {
					t.Errorf("%s: %q, want %q", file, broken[file], want)
				}
			}
		})
	}
}

// TestOthersFiles: only root and the user of the process determine what is started.
func TestOthersFiles(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(file string) error
		want  string
	}{
		"group may write":  {func(f string) error { return os.Chmod(f, 0o664) }, "(mode 0664).*run chmod go-w "},
		"others may write": {func(f string) error { return os.Chmod(f, 0o646) }, "run chmod go-w "},
		"a stranger's":     {func(f string) error { return os.Chown(f, 12345, 0) }, "the user 12345 owns.*chown root "},
		"a link": {
			func(f string) error { return errors.Join(os.Rename(f, f+".real"), os.Symlink(f+".real", f)) },
			"it is a symbolic link",
		},
		"a directory": {func(f string) error { return errors.Join(os.Remove(f), os.Mkdir(f, 0o700)) }, "not a regular file"},
		"a pipe": {
			func(f string) error { return errors.Join(os.Remove(f), unix.Mkfifo(f, 0o600)) }, "not a regular file",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, map[string]string{"a.yaml": textOf("a"), "b.yaml": textOf("b")})
			if err := c.spoil(filepath.Join(string(dir), "a.yaml")); err != nil {
				t.Fatal(err)
			}
			names, broken := read(dir)
			if !slices.Equal(names, []string{"b"}) || len(broken) != 1 || !contains(broken["a.yaml"], c.want) {
				t.Errorf("%q, %q; want %s", names, broken, c.want)
			}
			if _, err := dir.Get("a"); err == nil || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("got it: %v", err)
			}
			if err := dir.Remove("a"); err != nil {
				t.Errorf("it cannot be removed: %v", err)
			}
		})
	}
}

// TestOthersDirectory: an error of the directory is not that there are no drivers.
func TestOthersDirectory(t *testing.T) {
	dir := lay(t, map[string]string{"a.yaml": textOf("a")})
	if err := os.Chmod(string(dir), 0o777); err != nil {
		t.Fatal(err)
	}
	names, broken := read(dir)
	if names != nil || !strings.Contains(broken[string(dir)], "run chmod go-w "+string(dir)) {
		t.Errorf("%q, %q", names, broken)
	}
	for what, err := range map[string]error{
		"put": dir.Put(driver("b")), "remove": dir.Remove("a"), "get": second(dir.Get("a")),
		"restart": second(dir.Restart("a", time.Unix(1, 0))),
	} {
		if err == nil || !strings.Contains(err.Error(), "chmod go-w") || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestPut(t *testing.T) {
	dir := driverfile.Dir(filepath.Join(t.TempDir(), "new", "drivers.d"))
	if _, err := dir.Get("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing is there: %v", err)
	}
	for _, d := range []driverfile.Driver{driver("a"), driver("b"), driver("a")} {
		if err := dir.Put(d); err != nil {
			t.Fatal(err)
		}
		if got, err := dir.Get(d.Name); err != nil || !cmp.Equal(got, d) {
			t.Errorf("%v\n%s", err, cmp.Diff(d, got))
		}
	}
	for path, want := range map[string]fs.FileMode{string(dir): fs.ModeDir | 0o700, string(dir) + "/a.yaml": 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

// TestRemove: a driver's file is removed without the files of others, and a second removal is not an error.
func TestRemove(t *testing.T) {
	dir := lay(t, map[string]string{"a.yaml": textOf("a"), "b.yaml": textOf("b")})
	for range 2 {
		if err := dir.Remove("a"); err != nil {
			t.Error(err)
		}
	}
	if names, broken := read(dir); !slices.Equal(names, []string{"b"}) || len(broken) > 0 {
		t.Errorf("%q, %q", names, broken)
	}
	if err := driverfile.Dir(filepath.Join(string(dir), "absent")).Remove("a"); err != nil {
		t.Errorf("nothing is there: %v", err)
	}
}

// TestNotPut: nothing is written that would not be read.
func TestNotPut(t *testing.T) {
	dir := lay(t, nil)
	bad, long := driver("../a"), driver("a")
	long.Processes[0].Exec = append(long.Processes[0].Exec, strings.Repeat("x", 64<<10))
	for _, d := range []driverfile.Driver{bad, long} {
		if err := dir.Put(d); err == nil {
			t.Errorf("%.10s was written", d.Name)
		}
	}
	if err := dir.Remove("../a"); !errors.Is(err, csi.ErrName) {
		t.Errorf("removed: %v", err)
	}
	if _, err := dir.Get("../a"); !errors.Is(err, csi.ErrName) {
		t.Errorf("got: %v", err)
	}
	if entries, err := os.ReadDir(string(dir)); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestOneChangeAtATime: a change waits for that of another process, but not forever.
func TestOneChangeAtATime(t *testing.T) {
	dir := lay(t, nil)
	held, err := os.Open(string(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		err := dir.Put(driver("a"))
		if err == nil || !strings.Contains(err.Error(), "is being changed by another process") {
			t.Errorf("while another process writes: %v", err)
		}
		if waited := time.Since(begin); waited < 5*time.Second {
			t.Errorf("it was waited for %v", waited)
		}
		time.AfterFunc(time.Second, func() { _ = unix.Flock(int(held.Fd()), unix.LOCK_UN) })
		if err := dir.Put(driver("b")); err != nil {
			t.Errorf("when the other process has written: %v", err)
		}
	})
}

// TestRestart: what a person wrote stays as it is.
func TestRestart(t *testing.T) {
	first, second := time.Unix(1, 5), time.Unix(2, 0)
	const one, two = `restartedAt: "1970-01-01T00:00:01.000000005Z"`, `restartedAt: "1970-01-01T00:00:02Z"`
	for name, c := range map[string]struct{ file, text, want string }{
		"appended": {"a.yaml", "# mine\n" + textOf("a"), "# mine\n" + textOf("a") + two + "\n"},
		"replaced": {"a.yml", "restartedAt: 2001-01-01T00:00:00Z\n" + textOf("a"), two + "\n" + textOf("a")},
		"no newline": {
			"a.yaml", strings.TrimSuffix(textOf("a"), "\n"), textOf("a") + two + "\n",
		},
		"written anew": {
			"a.yaml", `{apiVersion: volplane.dev/v1, kind: Driver, name: a, processes: [{roles: [controller, node], exec: [/bin/a]}]}`,
			"restartedAt: \"1970-01-01T00:00:02Z\"\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, map[string]string{c.file: c.text})
			for _, at := range []time.Time{first, second} {
				want := driver("a")
				want.RestartedAt = at.UTC().Format(time.RFC3339Nano)
				got, err := dir.Restart("a", at)
				if err != nil || !cmp.Equal(got, want) {
					t.Errorf("%v\n%s", err, cmp.Diff(want, got))
				}
				if again, err := dir.Get("a"); err != nil || !cmp.Equal(again, want) {
					t.Errorf("%v\n%s", err, cmp.Diff(want, again))
				}
			}
			text, err := os.ReadFile(filepath.Join(string(dir), c.file))
			if err != nil || !strings.HasSuffix(string(text), c.want) || strings.Contains(string(text), one) {
				t.Errorf("%v\n%s", err, text)
			}
		})
	}
	if _, err := lay(t, nil).Restart("a", first); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is no driver: %v", err)
	}
}

func TestCSIDriver(t *testing.T) {
	for _, attaches := range []bool{false, true} {
		d := driverfile.Driver{Name: "x", NodeLocal: attaches}
		o := d.CSIDriver(csi.ControllerCapabilities{PublishUnpublish: attaches, Expand: true})
		if volume.IsNodeLocal(o.Annotations) != d.NodeLocal {
			t.Errorf("node-local %t: %q", d.NodeLocal, o.Annotations)
		}
		made := o.Labels["app.kubernetes.io/managed-by"]
		if o.Name != "x" || *o.Spec.AttachRequired != attaches || made != "volplane-driver" {
			t.Errorf("%+v", o)
		}
	}
}
