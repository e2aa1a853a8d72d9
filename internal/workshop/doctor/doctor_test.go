package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/workshop/finding"
	"volplane.dev/volplane/internal/workshop/scratch"
)

// patient returns a doctor of a driver of this program, with its volumes in the scratch directory.
func patient(t *testing.T, fault string) *Doctor {
	t.Helper()
	// The names of sockets are short.
	dir, err := os.MkdirTemp("/tmp", "dd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &Doctor{
		Exec: "'" + os.Args[0] + "'", Scratch: dir,
		Env: []string{"DOCTOR_TEST_DRIVER=$(SCRATCH)/driver", "DOCTOR_TEST_FAULT=" + fault},
	}
}

// examined runs a doctor, and wants nothing left of it.
func examined(t *testing.T, d *Doctor) (Report, error) {
	t.Helper()
	r, err := d.Run(t.Context())
	nothingLeft(t, d)
	return r, err
}

func nothingLeft(t *testing.T, d *Doctor) {
	t.Helper()
	if left, err := os.ReadDir(d.Scratch); err != nil || len(left) > 0 {
		t.Errorf("left in the scratch place: %v, %v", left, err)
	}
	if left, err := scratch.Mounts(d.Scratch); err != nil || len(left) > 0 {
		t.Errorf("still mounted: %v, %v", left, err)
	}
}

func listed(r Report) string {
	var out strings.Builder
	for _, f := range r.Findings {
		if f.Next != "" {
			f.Message += "; " + f.Next
		}
		fmt.Fprintf(&out, "%-4s %s: %s\n", f.Level, f.Check, f.Message)
	}
	return out.String()
}

// TestBundledDriver has nothing to complain about, within a minute. A process needs CAP_SYS_RESOURCE to grow ext4 while
// it is mounted, so the examination may warn of that; xfs grows. What has changed between two snapshots is known only
// where the filesystem of the pool shares blocks between files.
func TestBundledDriver(t *testing.T) {
	t.Parallel()
	for _, fsType := range []string{"", "xfs"} {
		d := patient(t, "")
		d.FSType = fsType
		r, err := examined(t, d)
		warned, failed := found(r)
		delete(warned, "snapshot-metadata")
		if fsType == "" {
			delete(warned, "grown")
		}
		if err != nil || len(warned)+len(failed) > 0 || r.Seconds > 60 || r.Calls < 300 {
			t.Errorf("%q: %v, %d calls in %.1f s\n%s", fsType, err, r.Calls, r.Seconds, listed(r))
		}
		for _, c := range checks() {
			unpromised := slices.Contains([]string{
				"controller-publish-conflict", "attach-limit", "volume-health", "list-health", "volume-condition",
			}, c.name)
			if made := strings.Contains(listed(r), " "+c.name+": "); made == unpromised {
				t.Errorf("%s was made: %v", c.name, made)
			}
		}
	}
}

// TestTwoProcesses: a driver whose controller is another process is examined as a whole, and both are killed.
func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	d := patient(t, "")
	d.Exec, d.ControllerExec = "env DOCTOR_TEST_ROLE=Node "+d.Exec, "env DOCTOR_TEST_ROLE=Controller "+d.Exec
	d.Only = slices.DeleteFunc(Checks(), func(check string) bool { return check == "ten-at-once" })
	r, err := examined(t, d)
	if _, failed := found(r); err != nil || len(failed) > 0 || !strings.Contains(listed(r), "killed-delete") {
		t.Errorf("%v\n%s", err, listed(r))
	}
	d.ControllerExec = ""
	r, err = examined(t, d)
	all, failed := found(r)
	if err != nil || len(failed) > 0 || all["controller-service"] != finding.Warn {
		t.Errorf("without the controller: %v\n%s", err, listed(r))
	}
}

// TestSocket: a driver that runs already is not killed, and has what it had before.
func TestSocket(t *testing.T) {
	t.Parallel()
	d := patient(t, "")
	dir, err := os.MkdirTemp("/tmp", "dd-")
	if err != nil {
		t.Fatal(err)
	}
	d.Socket = filepath.Join(dir, "csi.sock")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DOCTOR_TEST_DRIVER="+dir, "CSI_ENDPOINT=unix://"+d.Socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.Exec, d.Env = "", nil
	r, err := examined(t, d)
	if _, failed := found(r); err != nil || len(failed) > 0 || strings.Contains(listed(r), "killed") {
		t.Errorf("%v\n%s", err, listed(r))
	}
	if err := errors.Join(cmd.Process.Signal(unix.SIGTERM), cmd.Wait(), os.RemoveAll(dir)); err != nil {
		t.Error(err)
	}
}

// TestNoDriver: what is no driver cannot be examined, and the error says why without a secret.
func TestNoDriver(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Doctor){
		"there is neither a command":      func(d *Doctor) { d.Exec = "" },
		"a single quote is not closed":    func(d *Doctor) { d.Exec = "'" },
		"start the driver: ":              func(d *Doctor) { d.Exec = "/nowhere" },
		`has ended (exit status 3); it`:   func(d *Doctor) { d.Exec = "sh -c 'exit 3'" },
		`printed last: "the word is ***"`: func(d *Doctor) { d.Exec = "sh -c 'echo the word is pa55word-of-nobody; exit 3'" },
		"make a scratch directory: ":      func(d *Doctor) { d.Scratch = "/nowhere" },
		"a volume cannot have -1 bytes":   func(d *Doctor) { d.Size = -1 },
		"it is empty: write a program":    func(d *Doctor) { d.Exec = " " },
	} {
		d := patient(t, "")
		scratch := d.Scratch
		change(d)
		r, err := d.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || r.Level != finding.Fail {
			t.Errorf("%v, want %q", err, want)
		}
		if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", want, left, err)
		}
	}
}

// examine is a doctor in a process of its own, of a driver that hangs when a volume is unpublished.
func examine(dir string) error {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	r, err := (&Doctor{
		Exec: "'" + os.Args[0] + "'", Scratch: dir, Limit: time.Minute,
		Env: []string{"DOCTOR_TEST_DOCTOR=", "DOCTOR_TEST_DRIVER=$(SCRATCH)/driver", "DOCTOR_TEST_FAULT=a call hangs"},
	}).Run(ctx)
	fmt.Println(listed(r))
	return err
}

// another is a doctor of another process, whose driver hangs while a volume is mounted.
func another(t *testing.T) (*exec.Cmd, *Doctor) {
	t.Helper()
	d := patient(t, "")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DOCTOR_TEST_DOCTOR="+d.Scratch)
	cmd.Stdout = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, testkit.Unless("the driver hangs", func() bool {
		hung, err := filepath.Glob(d.Scratch + "/*/driver/hung")
		return err == nil && len(hung) == 1
	}))
	if left, err := scratch.Mounts(d.Scratch); err != nil || len(left) == 0 {
		t.Errorf("mounted meanwhile: %v, %v", left, err)
	}
	return cmd, d
}

// TestInterrupted: all is taken away.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	cmd, d := another(t)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it says that it was not interrupted")
	}
	nothingLeft(t, d)
}

// TestKilled: what a doctor leaves that was killed the next one takes away, and says so.
func TestKilled(t *testing.T) {
	t.Parallel()
	cmd, d := another(t)
	if err := errors.Join(cmd.Process.Kill(), cmd.Wait()); err == nil {
		t.Error("it was not killed")
	}
	d.Only = []string{"name"}
	r, err := examined(t, d)
	if err != nil || r.Findings[0].Check != "leftover-examination" || r.Findings[0].Level != finding.Pass {
		t.Errorf("%v\n%s", err, listed(r))
	}
}
