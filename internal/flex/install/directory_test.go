package install

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeProc is a /proc with the given processes, and a root for the paths of platforms.
type fakeProc struct {
	*testing.T
	dir string
}

func newFakeProc(t *testing.T) *fakeProc { return &fakeProc{t, t.TempDir()} }

// process adds one; $D in its arguments is the root directory.
func (f *fakeProc) process(id, line, environment string) {
	f.Helper()
	dir := filepath.Join(f.dir, "proc", id)
	f.file(filepath.Join(dir, "cmdline"), strings.ReplaceAll(f.here(line), " ", "\x00")+"\x00")
	f.file(filepath.Join(dir, "environ"), strings.ReplaceAll(f.here(environment), " ", "\x00"))
	if err := os.Symlink("/", filepath.Join(dir, "root")); err != nil {
		f.Fatal(err)
	}
}

func (f *fakeProc) here(s string) string { return strings.ReplaceAll(s, "$D", f.dir) }

func (f *fakeProc) file(path, text string) {
	f.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
}

func (f *fakeProc) find() (Directory, error) {
	return Search{Proc: filepath.Join(f.dir, "proc"), Root: f.dir}.Find()
}

// hostCase is a program that runs, its files, and what is found by them.
type hostCase struct {
	line, environment string
	files             map[string]string
	path, because     string
	host, root        string
}

// TestFind: a host that runs says where it looks (F-060).
func TestFind(t *testing.T) {
	for name, c := range map[string]hostCase{
		"kubelet's flag": {
			line: "/usr/bin/kubelet --v=2 --volume-plugin-dir=$D/a", path: "$D/a",
			because: "kubelet, process 7, --volume-plugin-dir", host: HostKubelet,
		},
		"flag in two words": {
			line: "kubelet --volume-plugin-dir $D/a --volume-plugin-dir $D/b", path: "$D/b", because: "--volume-plugin-dir",
			host: HostKubelet,
		},
		"kubelet's file": {line: "kubelet --config=$D/kubelet.yaml", files: map[string]string{
			"kubelet.yaml": "kind: KubeletConfiguration\nvolumePluginDir: $D/c\n",
		}, path: "$D/c", because: "volumePluginDir in $D/kubelet.yaml", host: HostKubelet},
		"flag before the file": {line: "kubelet --config=$D/kubelet.yaml --volume-plugin-dir=$D/a", files: map[string]string{
			"kubelet.yaml": "volumePluginDir: $D/c\n",
		}, path: "$D/a", because: "--volume-plugin-dir", host: HostKubelet},
		"later files first": {line: "kubelet --config $D/k --config-dir $D/d", files: map[string]string{
			"k": "volumePluginDir: $D/k\n", "d/1.conf": "volumePluginDir: $D/1\n", "d/2.conf": "volumePluginDir: $D/2\n",
			"d/3.conf": "kind: x\n",
		}, path: "$D/2", because: "2.conf", host: HostKubelet},
		"k3s": {
			line: "/usr/local/bin/k3s server --kubelet-arg=volume-plugin-dir=$D/k3s", path: "$D/k3s", because: "--kubelet-arg",
			host: HostKubelet,
		},
		"hyperkube": {
			line: "hyperkube kubelet --volume-plugin-dir=$D/h", path: "$D/h", because: "hyperkube", host: HostKubelet,
		},
		"ours": {
			line: "bin/volplaned up --data-dir $D/data", path: "$D/data/volumeplugins",
			because: "volplaned, process 7, in its data directory", host: HostVolplane, root: "$R",
		},
		"ours by environment": {
			line: "volplaned up", environment: "A=b VOLPLANE_DATA_DIR=$D/env", path: "$D/env/volumeplugins",
			because: "data directory", host: HostVolplane,
		},
		"ours by flag": {
			line: "volplaned up --volume-plugin-dir=$D/own", path: "$D/own", because: "--volume-plugin-dir", host: HostVolplane,
		},
		"ours by default": {
			line: "volplaned up --volume-plugin-dir=$D/own --data-dir /var/lib/volplane", path: "$D/own",
			because: "--volume-plugin-dir", host: HostVolplane, root: DefaultRoot,
		},
		"our bridge": {
			line: "volplane flex bridge --dir=$D/own", path: "$D/own", because: "volplane, process 7, the bridge",
			host: HostVolplane, root: DefaultRoot,
		},
		"its root": {
			line: "volplane flex bridge --dir=$D/own --root-dir /var/lib/other", path: "$D/own", because: "volplane",
			host: HostVolplane, root: "/var/lib/other",
		},
		"our node agent": {
			line: "volplane node --join f --volume-plugin-dir $D/n --flex-root-dir /var/lib/n", path: "$D/n",
			because: "volplane", host: HostVolplane, root: "/var/lib/n",
		},
		"one without drivers":    {line: "volplane node --join f", path: "$D" + Default, because: "no host runs"},
		"our command is no host": {line: "volplane flex list", path: "$D" + Default, because: "no host runs"},
		"another program":        {line: "vim kubelet --volume-plugin-dir=/x", path: "$D" + Default, because: "no host runs"},
	} {
		t.Run(name, c.check)
	}
}

func (c hostCase) check(t *testing.T) {
	f := newFakeProc(t)
	f.process("7", c.line, c.environment)
	for path, text := range c.files {
		f.file(filepath.Join(f.dir, path), f.here(text))
	}
	d, err := f.find()
	if c.root == "$R" {
		c.root = RootOf(filepath.Join(f.dir, "data"))
	}
	if c.root != "" && d.Root != c.root {
		t.Errorf("root directory %s, want %s", d.Root, c.root)
	}
	if err != nil || d.Path != f.here(c.path) || !strings.Contains(d.Because, f.here(c.because)) || d.Host != c.host {
		t.Errorf("%+v, %v; want %s", d, err, f.here(c.path))
	}
}

// TestFindPrefersOurs: a control plane of volplane is preferred.
func TestFindPrefersOurs(t *testing.T) {
	f := newFakeProc(t)
	f.process("7", "kubelet --volume-plugin-dir=$D/theirs", "")
	f.process("8", "volplaned up --volume-plugin-dir=$D/ours", "")
	if d, err := f.find(); err != nil || d.Path != f.here("$D/ours") {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestFindAmongSeveral: where several control planes run, the one whose data directory is
// named is used; there is no guessing.
func TestFindAmongSeveral(t *testing.T) {
	f := newFakeProc(t)
	f.process("7", "volplaned up --data-dir $D/a", "")
	f.process("8", "volplaned up --data-dir $D/b", "")
	f.process("9", "kubelet --volume-plugin-dir=$D/k", "")
	search := Search{Proc: filepath.Join(f.dir, "proc"), Root: f.dir}
	if _, err := search.Find(); !errors.Is(err, ErrNoDirectory) || !strings.Contains(err.Error(),
		f.here("$D/a/volumeplugins")) || !strings.Contains(err.Error(), f.here("$D/b/volumeplugins")) {
		t.Errorf("without a name: %v", err)
	}
	search.DataDir = f.here("$D/b")
	for _, search.Named = range []bool{false, true} {
		if d, err := search.Find(); err != nil || d.Path != f.here("$D/b/volumeplugins") {
			t.Errorf("by its data directory: %+v: %v", d, err)
		}
	}
}

// TestFindNamed: a control plane that was named and does not run is not exchanged for one that runs.
func TestFindNamed(t *testing.T) {
	f := newFakeProc(t)
	f.process("7", "volplaned up --data-dir $D/a", "")
	search := Search{Proc: filepath.Join(f.dir, "proc"), Root: f.dir, DataDir: f.here("$D/c"), Named: true}
	d, err := search.Find()
	if err != nil || d.Path != f.here("$D/c/volumeplugins") || d.Host != "" {
		t.Errorf("%+v: %v", d, err)
	}
	search.DataDir = "c"
	if _, err := search.Find(); !errors.Is(err, ErrNoDirectory) {
		t.Errorf("its plugin directory cannot be used: %v", err)
	}
}

// TestFindWithoutHost takes what exists and can be used.
func TestFindWithoutHost(t *testing.T) {
	f := newFakeProc(t)
	gke := filepath.Join(f.dir, "/home/kubernetes/flexvolume")
	if err := os.MkdirAll(gke, 0o755); err != nil {
		t.Fatal(err)
	}
	if d, err := f.find(); err != nil || d.Path != gke || !strings.Contains(d.Because, "GKE") {
		t.Errorf("%+v, %v", d, err)
	}
	// Where nothing may be started, drivers are of no use.
	if err := unix.Mount("tmpfs", gke, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(gke, unix.MNT_DETACH) })
	if problem := Problem(gke); !strings.Contains(problem, "noexec") {
		t.Errorf("problem %q", problem)
	}
	if d, err := f.find(); err != nil || d.Path != filepath.Join(f.dir, Default) {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestFindReadOnly: a running kubelet decides also where nothing can be written,
// and the user learns what to do.
func TestFindReadOnly(t *testing.T) {
	f := newFakeProc(t)
	usr := filepath.Join(f.dir, "usr")
	if err := os.MkdirAll(usr, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", usr, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(usr, unix.MNT_DETACH) })
	if d, err := f.find(); !errors.Is(err, ErrNoDirectory) || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("%+v, %v", d, err)
	}
	f.process("7", "kubelet --volume-plugin-dir=$D/usr/exec", "")
	d, err := f.find()
	if !errors.Is(err, ErrNoDirectory) || !strings.Contains(d.Problem, "read-only") ||
		!strings.Contains(d.Advice(), "--volume-plugin-dir") {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestFindContainer(t *testing.T) {
	f := newFakeProc(t)
	f.process("7", "kubelet --volume-plugin-dir=$D/exec", "")
	inside := filepath.Join(f.dir, "container")
	for _, dir := range []string{filepath.Join(f.dir, "exec"), filepath.Join(inside, f.dir, "exec")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(f.dir, "proc", "7", "root")
	if err := errors.Join(os.Remove(root), os.Symlink(inside, root)); err != nil {
		t.Fatal(err)
	}
	if d, err := f.find(); !errors.Is(err, ErrNoDirectory) || !strings.Contains(d.Problem, "container") {
		t.Errorf("%+v, %v", d, err)
	}
}
