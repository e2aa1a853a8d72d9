package doctor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/workshop/finding"
)

// another is a doctor of another process, in the middle of a mount.
type another struct {
	*testing.T
	cmd *exec.Cmd
	out *strings.Builder
	// scratch is where scratch directories are, root is its own, and daemon what
	// the driver has started.
	scratch, root, daemon string
}

// startAnother returns when the driver has mounted, started a daemon and hangs.
func startAnother(t *testing.T) *another {
	t.Helper()
	dir := t.TempDir()
	a := &another{T: t, scratch: filepath.Join(dir, "scratch"), out: &strings.Builder{}}
	p := sound()
	p["mount"] =
		`mount -t tmpfs x "$2"; mkdir "$2/in"; mount -t tmpfs x "$2/in"; sleep 600 </dev/null >/dev/null 2>&1 & echo $! >` +
			dir + `/new; mv ` + dir + `/new ` + dir + `/daemon; sleep 600`
	path := filepath.Join(dir, "test")
	if err := errors.Join(os.WriteFile(path, []byte(p.script()), 0o755), os.Mkdir(a.scratch, 0o700)); err != nil {
		t.Fatal(err)
	}
	a.cmd = exec.Command(os.Args[0])
	a.cmd.Env = append(os.Environ(), "EXAMINE="+path, "SCRATCH="+a.scratch)
	a.cmd.Stdout = a.out
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(time.Minute); a.daemon == ""; <-tick.C {
		daemon, _ := os.ReadFile(dir + "/daemon")
		a.daemon = strings.TrimSpace(string(daemon))
		if time.Now().After(limit) {
			t.Fatal("it does not mount")
		}
	}
	all, err := filepath.Glob(a.scratch + "/*")
	if err != nil || len(all) != 1 {
		t.Fatalf("scratch directories: %v, %v", all, err)
	}
	a.root = all[0]
	return a
}

// end ends the doctor by a signal and waits for that.
func (a *another) end(s os.Signal) error {
	a.Helper()
	if err := a.cmd.Process.Signal(s); err != nil {
		a.Fatal(err)
	}
	return a.cmd.Wait()
}

// daemonEnded: a process that was killed takes a moment to end, and who has it
// for a child to notice.
func (a *another) daemonEnded() {
	a.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(time.Minute); ; <-tick.C {
		stat, err := os.ReadFile("/proc/" + a.daemon + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(limit) {
			a.Fatalf("the driver's daemon is left: %s", stat)
		}
	}
}

// beside examines a sound driver with the scratch place of another doctor.
func (a *another) beside() Report {
	a.Helper()
	path := filepath.Join(a.TempDir(), "test")
	if err := os.WriteFile(path, []byte(sound().script()), 0o755); err != nil {
		a.Fatal(err)
	}
	r, err := (&Doctor{
		Path: path, Name: decide.Name{Driver: "test"}, Scratch: a.scratch, Limit: time.Minute,
	}).Run(a.Context())
	if err != nil {
		a.Errorf("%v\n%s", err, listed(r))
	}
	return r
}

// ofLeftovers returns the findings about killed examinations.
func ofLeftovers(r Report) []finding.Finding {
	return slices.DeleteFunc(slices.Clone(r.Findings),
		func(f finding.Finding) bool { return f.Check != "leftover-examination" })
}

// TestKilled: the next doctor removes what a killed one has left, and reports it.
func TestKilled(t *testing.T) {
	t.Parallel()
	a := startAnother(t)
	if err := a.end(os.Kill); err == nil {
		t.Error("it was not killed")
	}
	if left, err := mount.Below(a.root); err != nil || len(left) != 2 {
		t.Errorf("mounted after the kill: %v, %v", left, err)
	}
	r := a.beside()
	if said := ofLeftovers(r); r.Level != finding.Pass || len(said) != 1 || said[0].Path != a.root ||
		!strings.Contains(said[0].Message, "mounts in it: 2") {
		t.Errorf("%+v\n%s", said, listed(r))
	}
	nothingLeft(t, &Doctor{Scratch: a.scratch})
	a.daemonEnded()
}

// TestRunningIsLeftAlone: of a doctor that lives nothing is touched.
func TestRunningIsLeftAlone(t *testing.T) {
	t.Parallel()
	a := startAnother(t)
	if r := a.beside(); r.Level != finding.Pass || len(ofLeftovers(r)) != 0 {
		t.Errorf("beside one that runs:\n%s", listed(r))
	}
	if left, err := mount.Below(a.root); err != nil || len(left) != 2 {
		t.Errorf("mounted beside another: %v, %v", left, err)
	}
	if stat, err := os.ReadFile("/proc/" + a.daemon + "/stat"); err != nil || strings.Contains(string(stat), ") Z ") {
		t.Errorf("its daemon is gone: %s, %v", stat, err)
	}
	if err := a.end(os.Interrupt); err != nil {
		t.Error(err)
	}
	nothingLeft(t, &Doctor{Scratch: a.scratch})
	a.daemonEnded()
}

// TestDeadOnesOnly: what no doctor has made, or what is on another device, is
// left as it is.
func TestDeadOnesOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := &another{T: t, scratch: filepath.Join(dir, "scratch")}
	of := func(name string) string { return filepath.Join(a.scratch, name) }
	data := filepath.Join(dir, "volplane-doctor-9")
	if err := errors.Join(
		os.Mkdir(a.scratch, 0o700), os.Mkdir(data, 0o700), os.WriteFile(data+"/file", nil, 0o600),
		os.Symlink(data, of("volplane-doctor-1")),
		os.WriteFile(of("volplane-doctor-2"), nil, 0o600),
		os.Mkdir(of("volplane-doctor-3"), 0o700), os.Chmod(of("volplane-doctor-3"), 0o755),
		os.Mkdir(of("volplane-doctor-4"), 0o700), os.Chown(of("volplane-doctor-4"), 4321, 0),
		os.Mkdir(of("volplane-doctor-five"), 0o700), os.Mkdir(of("another-doctor-6"), 0o700),
		os.Mkdir(of("volplane-doctor-7"), 0o700), unix.Mount("x", of("volplane-doctor-7"), "tmpfs", 0, "mode=0700"),
		os.Mkdir(of("volplane-doctor-8"), 0o700), os.Symlink(data, of("volplane-doctor-8/link")),
	); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(of("volplane-doctor-7"), 0) }()
	said := ""
	for _, f := range ofLeftovers(a.beside()) {
		said += fmt.Sprintf("%s %s, to do: %q\n", f.Level, filepath.Base(f.Path), f.Next)
	}
	if want := "warn volplane-doctor-7, to do: \"administrator: unmount what is mounted there, and remove it\"\npass " +
		"volplane-doctor-8, to do: \"\"\n"; said != want {
		t.Errorf("it said %s", said)
	}
	left, err := filepath.Glob(a.scratch + "/*")
	if err != nil || len(left) != 7 || slices.Contains(left, of("volplane-doctor-8")) {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(data + "/file"); err != nil {
		t.Error("a link was followed")
	}
	if left, err := mount.Below(of("volplane-doctor-7")); err != nil || len(left) != 1 {
		t.Errorf("of what is mounted on a directory there is left: %v, %v", left, err)
	}
}

// TestWhatCannotBeRemoved: what cannot be removed stays, and is reported until it can be.
func TestWhatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	a := &another{T: t, scratch: filepath.Join(t.TempDir(), "scratch")}
	root := filepath.Join(a.scratch, "volplane-doctor-1")
	if err := os.MkdirAll(root, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(root, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const immutable = 0x10 // FS_IMMUTABLE_FL
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
		t.Fatal(err)
	}
	r := a.beside()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0); err != nil {
		t.Fatal(err)
	}
	said := ofLeftovers(r)
	if len(said) != 1 || said[0].Level != finding.Warn || said[0].Path != root || said[0].Next == "" ||
		!strings.Contains(said[0].Message, "not permitted") {
		t.Errorf("%+v", said)
	}
	if said := ofLeftovers(a.beside()); len(said) != 1 || said[0].Level != finding.Pass {
		t.Errorf("the next time: %+v", said)
	}
	nothingLeft(t, &Doctor{Scratch: a.scratch})
}
