package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/test/internal/plane"
)

// TestSystemdBoots boots a machine with systemd twice, whose fstab has volumes: they are mounted when remote-fs.target
// is reached, or at the first access, stay when the control plane is restarted, and are unmounted, with its help, when
// the machine is switched off. Then another machine boots, whose docker requests a volume before the control plane
// runs. The machines share some hierarchies of control groups, where one would remove groups that the other has just
// created.
func TestSystemdBoots(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for range 2 {
		m.boot("mounts.sh")
	}
	newMachine(t).boot("docker.sh")
}

// machine has this machine's files and a systemd of its own, each time that it is booted.
type machine struct {
	*testing.T
	dir, group, deploy string
	boots              int
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	// Names of sockets are short, so the directory's is too.
	dir, err := os.MkdirTemp("", "b-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(dir)
		}
	})
	deploy, err := filepath.Abs("../../deploy/systemd")
	if err != nil {
		t.Fatal(err)
	}
	return &machine{T: t, dir: dir, group: ownGroups(t, filepath.Base(dir)), deploy: deploy}
}

// boot boots the machine, which runs a script of testdata/systemd and switches itself off.
func (m *machine) boot(script string) {
	m.Helper()
	m.boots++
	if err := os.WriteFile(filepath.Join(m.dir, "boot"), fmt.Appendln(nil, m.boots), 0o600); err != nil {
		m.Fatal(err)
	}
	c := exec.CommandContext(m.Context(), "bash", "-c", m.group+`exec unshare --mount --pid --fork --cgroup --ipc --uts `+
		`--net --propagation private --kill-child bash testdata/systemd/boot.sh "$@"`, "boot", m.dir,
		filepath.Dir(plane.Bin("volplane")), m.deploy, script)
	out, err := c.CombinedOutput()
	said, _ := os.ReadFile(filepath.Join(m.dir, "log"))
	if err != nil || !strings.Contains(string(said), fmt.Sprintf("boot %d was good\n", m.boots)) {
		m.Fatalf("boot %d: %v\n%s\n%s", m.boots, err, said, out)
	}
	if strings.Contains(string(out), "ordering cycle") || strings.Contains(string(out), "Failed unmounting") {
		m.Errorf("boot %d:\n%s", m.boots, out)
	}
	if left, err := exec.CommandContext(m.Context(), "losetup", "--list", "--noheadings", "--output",
		"BACK-FILE").Output(); err != nil || strings.Contains(string(left), m.dir) {
		m.Errorf("boot %d left loop devices: %s, %v", m.boots, left, err)
	}
}

// TestUnitsOfMounts lets systemd verify the examples of fstab and of units, together with the unit of volplane: each is
// valid, and there is no ordering cycle. Without _netdev there is one, as docs/mount.md says.
func TestUnitsOfMounts(t *testing.T) {
	t.Parallel()
	fstab, err := os.ReadFile("../../examples/systemd/fstab")
	if err != nil {
		t.Fatal(err)
	}
	if out := verifyUnits(t, string(fstab)); strings.TrimSpace(out) != "" {
		t.Errorf("systemd says:\n%s", out)
	}
	local := strings.NewReplacer("_netdev,", "", "nofail,", "").Replace(string(fstab))
	if out := verifyUnits(t, local); !strings.Contains(out, "Found ordering cycle") {
		t.Errorf("_netdev is not needed any more:\n%s", out)
	}
}

// verifyUnits returns systemd's complaints about the units from fstab and those of the examples.
func verifyUnits(t *testing.T, fstab string) string {
	t.Helper()
	dir := t.TempDir()
	unit, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	// The program is not installed here.
	text := strings.ReplaceAll(string(unit), "/usr/local/bin/volplaned", "/bin/true")
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "volplane.service"), []byte(text), 0o600),
		os.WriteFile(filepath.Join(dir, "fstab"), []byte(fstab), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"srv-logs.mount", "srv-logs.automount"} {
		data, err := os.ReadFile(filepath.Join("../../examples/systemd", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const generator = "/usr/lib/systemd/system-generators/systemd-fstab-generator"
	generate := exec.CommandContext(t.Context(), generator, dir, dir, dir)
	generate.Env = append(os.Environ(), "SYSTEMD_FSTAB="+filepath.Join(dir, "fstab"))
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	units, err := filepath.Glob(filepath.Join(dir, "*.*mount"))
	if err != nil || len(units) != 6 {
		t.Fatalf("units: %v, %v", units, err)
	}
	verify := exec.CommandContext(t.Context(), "systemd-analyze", append([]string{
		"verify", filepath.Join(dir, "volplane.service"),
	}, units...)...)
	verify.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	out, err := verify.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return string(out)
}

// ownGroups creates a control group with a name in each hierarchy that systemd uses, and returns the shell commands
// that enter them: systemd considers the group in which it starts to be the top.
func ownGroups(t *testing.T, name string) string {
	t.Helper()
	var enter strings.Builder
	for _, at := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(at, "cgroup.procs")); err != nil {
			continue
		}
		group := filepath.Join(at, name)
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { removeGroups(t, group) })
		fmt.Fprintf(&enter, "echo $$ >%s/cgroup.procs; ", group)
	}
	if enter.Len() == 0 {
		t.Fatal("there is no hierarchy of control groups that systemd could use")
	}
	return enter.String()
}

// removeGroups removes a control group and those in it, the innermost first.
func removeGroups(t *testing.T, group string) {
	t.Helper()
	inner, err := os.ReadDir(group)
	// The last one in a group may remove it.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for _, e := range inner {
		if e.IsDir() {
			removeGroups(t, filepath.Join(group, e.Name()))
		}
	}
	if err := unix.Rmdir(group); err != nil && !errors.Is(err, syscall.ENOENT) {
		t.Errorf("control group %s: %v", group, err)
	}
}
