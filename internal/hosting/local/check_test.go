package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/mount"
)

// damage has debugfs do something with the image of a volume that is not
// mounted, and notes errors in it, as the kernel does when it finds some.
func (d *disk) damage(request string) {
	d.Helper()
	for _, r := range []string{request, "set_super_value state 2"} {
		if out, err := exec.Command("debugfs", "-w", "-R", r, d.image()).CombinedOutput(); err != nil {
			d.Fatalf("%s: %v: %s", r, err, out)
		}
	}
}

func (d *disk) image() string { return filepath.Join(d.pool, "volumes", d.id, "disk.img") }

// written returns a volume with a filesystem that holds "data" and is not in use.
func (w *poolDriver) written() *disk {
	d := w.create("v", 32*mib, "ext4", nil)
	d.use()
	d.write("data")
	d.rest()
	return d
}

// sound wants the filesystem to have no errors.
func (d *disk) sound() {
	d.Helper()
	if out, err := exec.Command("e2fsck", "-f", "-n", d.image()).CombinedOutput(); err != nil {
		d.Errorf("there are errors still: %v: %s", err, out)
	}
}

// TestSmallDamage is mended when the volume is staged.
func TestSmallDamage(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.written()
	d.damage("freei data")
	d.use()
	for _, name := range []string{"a", "b"} {
		w.ok(os.WriteFile(filepath.Join(d.target, name), blob("other"), 0o600))
	}
	d.holds("data")
	d.rest()
	d.sound()
	w.ok(w.delete(d.id))
	w.empty()
}

// TestBadDamage: severe damage keeps a volume from being mounted until the administrator
// has done what the error says.
func TestBadDamage(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 32*mib, "ext4", nil)
	d.use()
	d.write("data")
	w.ok(os.MkdirAll(filepath.Join(d.target, "dir/dir"), 0o700))
	d.rest()
	d.damage("clri dir")
	w.ok(d.attach())
	command := "flock " + d.image() + " e2fsck -f " + d.image()
	for range 2 {
		const words = "errors that have to be repaired manually: run "
		w.refused("stage", d.stage(), codes.FailedPrecondition, d.id, words+command)
		checkNothingLeft(t, w.dir)
	}
	// Also when it is to grow before it is mounted.
	d.expand(40 * mib)
	w.refused("stage", d.stage(), codes.FailedPrecondition, command)
	w.ok(d.stage("ro"))
	w.ok(d.unstage())
	args := append(strings.Fields(command), "-y")
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "MODIFIED") {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	w.ok(d.stage())
	w.ok(d.publish(false))
	d.holds("data")
	d.end()
	w.empty()
}

// TestKilledCheck: a driver is killed while a filesystem is checked, and the check
// continues after the next driver has mounted it.
func TestKilledCheck(t *testing.T) {
	dir := newDir(t)
	p := run(t, dir, "node").serving("node")
	d := p.written()
	d.damage("freei data")
	p.end(unix.SIGTERM)
	real, err := exec.LookPath("e2fsck")
	p.ok(err)
	bin := t.TempDir()
	file := func(name string) string { return filepath.Join(bin, name) }
	script := "#!/bin/sh\ntouch " + file("began") + "\nwhile [ ! -e " + file("go") + " ]; do sleep 0.01; done\n" + real +
		` "$@" >` + file("said") + " 2>&1\ntouch " + file("ended") + "\n"
	p.ok(os.WriteFile(file("e2fsck"), []byte(script), 0o700)) //nolint:gosec // it is to be run
	exists := func(name string) func() bool {
		return func() bool { _, err := os.Stat(file(name)); return err == nil }
	}
	path := os.Getenv("PATH")
	t.Setenv("PATH", bin+":"+path)
	p = run(t, dir, "node").serving("node")
	d.poolDriver = p.poolDriver
	p.ok(d.attach())
	staged := make(chan error, 1)
	go func() { staged <- d.stage() }()
	eventually(t, "check", exists("began"))
	p.end(unix.SIGKILL)
	p.refused("stage by a driver that is killed", <-staged, codes.Unavailable)
	t.Setenv("PATH", path)
	p = run(t, dir, "node").serving("node")
	d.poolDriver = p.poolDriver
	p.ok(d.stage())
	p.ok(d.publish(false))
	p.ok(os.WriteFile(file("go"), nil, 0o600))
	eventually(t, "end of the check", exists("ended"))
	if said, err := os.ReadFile(file("said")); !strings.Contains(string(said), "is mounted") {
		t.Errorf("the check said %s, %v", said, err)
	}
	d.holds("data")
	d.rest()
	d.sound()
	p.ok(p.delete(d.id))
	p.empty()
}

// TestHeldDevice: a check that outlived its driver has the device; nothing is
// mounted below it, and later all is well.
func TestHeldDevice(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.written()
	w.ok(d.attach())
	device, err := new(mount.Loops).Attach(d.image(), false)
	w.ok(err)
	other, err := os.OpenFile(device, os.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
	w.ok(err)
	w.refused("stage", d.stage(), codes.FailedPrecondition, "another program is using it", device+" open; end that first")
	w.ok(other.Close())
	w.ok(d.stage())
	w.ok(d.publish(false))
	d.holds("data")
	d.end()
	w.empty()
}
