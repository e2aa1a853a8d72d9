package mount

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/testkit"
)

// holding is a process that uses a mount.
type holding struct {
	// script runs in a directory beside the mount, which is $1, reports that it is ready, and ends with its standard
	// input.
	script, command, use string
	// elsewhere means that it has its own mount namespace.
	elsewhere bool
}

func (h holding) check(t *testing.T, pid int, all []Holder) {
	t.Helper()
	want := []Holder{}
	if h.use != "" {
		want = append(want, Holder{PID: pid, Command: h.command, Use: h.use})
	}
	if h.elsewhere {
		want[0].Namespace = namespaceOf(fmt.Sprint(pid))
	}
	if got := fmt.Sprint(all); got != fmt.Sprint(want) || strings.Contains(got, "hunter2") ||
		h.elsewhere && want[0].Namespace == namespaceOf("self") {
		t.Errorf("holders: %s, want %v", got, want)
	}
}

// TestHolders: each process that keeps a mount in use is named with its kind of use, and with its mount namespace if
// that differs; other processes and their arguments are not.
func TestHolders(t *testing.T) {
	_, device := disk(t, 16)
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]holding{
		"nobody":    {script: "echo ready; read x"},
		"directory": {`cd "$1"; echo ready; read x`, "sh", "its working directory", false},
		"file":      {`exec 3>"$1/file"; echo ready; read x`, "sh", "an open file", false},
		"program": {
			`cp "$(command -v sh)" "$1/hunter1"; exec "$1/hunter1" -c 'echo ready; read x; : hunter2'`, "hunter1",
			"a mapped file", false,
		},
		"copy": {`exec unshare --mount sh -c 'echo ready; read x; : hunter2'`, "sh", "a copy", true},
		"file of copy": {
			`exec unshare --mount sh -c 'exec 3>"$1/file"; echo ready; read x' sh "$1"`, "sh", "an open file", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			target := mounted(t, device, "ext4")
			p, _, err := At(target)
			if err != nil {
				t.Fatal(err)
			}
			pid, end := holds(t, c.script, target)
			var s Search
			all, err := s.Holders(t.Context(), []Point{p})
			if err != nil {
				t.Error(err)
			}
			c.check(t, pid, all)
			end()
			if all, err := s.Holders(t.Context(), []Point{p}); err != nil || len(all) > 0 {
				t.Errorf("when it has ended: %v %v", all, err)
			}
		})
	}
}

// TestKernelHolds: the kernel's own uses of a mount or a device are named, although no process uses it.
func TestKernelHolds(t *testing.T) {
	_, device := disk(t, 16)
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	target := mounted(t, device, "ext4")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	p, _, err := At(target)
	if err != nil {
		t.Fatal(err)
	}
	var s Search
	held := func(want string) {
		t.Helper()
		if all, err := s.Holders(t.Context(), []Point{p}); err != nil || fmt.Sprint(all) != want {
			t.Errorf("of the mount: %v %v, want %s", all, err, want)
		}
		if all, err := s.HoldersOf(t.Context(), device); err != nil || fmt.Sprint(all) != want {
			t.Errorf("of the device: %v %v, want %s", all, err, want)
		}
	}
	file, swap := filepath.Join(target, "disk"), filepath.Join(target, "a b")
	run("truncate", "--size=1M", file)
	run("dd", "if=/dev/zero", "of="+swap, "bs=1M", "count=1")
	run("mkswap", swap)
	held("[]")

	loop := run("losetup", "--find", "--show", file)
	held("[{0  loop device " + loop + " }]")
	run("losetup", "--detach", loop)
	run("swapon", swap)
	held("[{0  swap space " + swap + " }]")
	run("swapoff", swap)
	held("[]")

	if err := Unmount(target); err != nil {
		t.Fatal(err)
	}
	loop = run("losetup", "--find", "--show", device)
	all, err := s.HoldersOf(t.Context(), device)
	if want := "[{0  loop device " + loop + " }]"; err != nil || fmt.Sprint(all) != want {
		t.Errorf("of the device: %v %v, want %s", all, err, want)
	}
	run("losetup", "--detach", loop)
}

// TestHoldersOf: each process that keeps a device in use is named, although the device is no longer mounted here.
func TestHoldersOf(t *testing.T) {
	_, device := disk(t, 16)
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]holding{
		"nobody":        {script: "echo ready; read x"},
		"copy":          {`exec unshare --mount sh -c 'echo ready; read x; : hunter2'`, "sh", "a copy", true},
		"detached file": {`exec 3>"$1/file"; echo ready; read x`, "sh", "an open file", false},
		"device":        {`exec 3<` + device + `; echo ready; read x`, "sh", "an open file", false},
		"file of copy": {
			`exec unshare --mount sh -c 'exec 3>"$1/file"; echo ready; read x' sh "$1"`, "sh", "an open file", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			target := mounted(t, device, "ext4")
			pid, end := holds(t, c.script, target)
			if err := Detach(target); err != nil {
				t.Fatal(err)
			}
			all, err := new(Search).HoldersOf(t.Context(), device)
			if err != nil {
				t.Error(err)
			}
			c.check(t, pid, all)
			end()
		})
	}
	if _, err := new(Search).HoldersOf(t.Context(), t.TempDir()); err == nil {
		t.Error("a directory was taken for a device")
	}
}

// holds starts a script that is ready when this returns, and returns how it is ended.
func holds(t *testing.T, script, target string) (pid int, end func()) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", target)
	c.Dir = filepath.Dir(target)
	end = testkit.StartHolder(t, c)
	return c.Process.Pid, end
}

// TestHangingSearch: while a search hangs no other is started, and when it has returned
// the next one is.
func TestHangingSearch(t *testing.T) {
	hangs := make(chan []Holder, 1)
	s := Search{hangs: hangs}
	if _, err := s.Holders(t.Context(), nil); err == nil {
		t.Error("a second search was begun")
	}
	hangs <- nil
	if _, err := s.Holders(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
