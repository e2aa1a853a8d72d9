package mount

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestHolders: whoever keeps a mount in use is named with what it has of it, and with
// its mount namespace when that is another one; nobody else is, and no argument.
func TestHolders(t *testing.T) {
	_, device := disk(t, 16)
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		// script runs in a directory beside the mount, which is $1, says that it is
		// ready, and ends with its standard input.
		script, command, use string
		elsewhere            bool
	}{
		"nobody":       {script: "echo ready; read x"},
		"directory":    {`cd "$1"; echo ready; read x`, "sh", "its working directory", false},
		"file":         {`exec 3>"$1/file"; echo ready; read x`, "sh", "an open file", false},
		"program":      {`cp "$(command -v sh)" "$1/hunter1"; exec "$1/hunter1" -c 'echo ready; read x; : hunter2'`, "hunter1", "a mapped file", false},
		"copy":         {`exec unshare --mount sh -c 'echo ready; read x; : hunter2'`, "sh", "a copy", true},
		"file of copy": {`exec unshare --mount sh -c 'exec 3>"$1/file"; echo ready; read x' sh "$1"`, "sh", "an open file", true},
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
			got := fmt.Sprint(all)
			own := namespaceOf("self")
			switch {
			case c.use == "":
				if len(all) > 0 {
					t.Errorf("holders: %s", got)
				}
			case len(all) != 1 || all[0].PID != pid || all[0].Command != c.command || all[0].Use != c.use || strings.Contains(got, "hunter2"):
				t.Errorf("holders: %s, want process %d (%s) with its %s", got, pid, c.command, c.use)
			case c.elsewhere != (all[0].Namespace != "") || all[0].Namespace == own:
				t.Errorf("its mount namespace is %q, that of this process %q", all[0].Namespace, own)
			}
			end()
			if all, err := s.Holders(t.Context(), []Point{p}); err != nil || len(all) > 0 {
				t.Errorf("when it has ended: %v %v", all, err)
			}
		})
	}
}

// holds starts a script that is ready when this returns, and returns how it is ended.
func holds(t *testing.T, script, target string) (pid int, end func()) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", target)
	c.Dir = filepath.Dir(target)
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = stdin.Close()
			_ = c.Wait()
		}
	}
	t.Cleanup(end)
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return c.Process.Pid, end
}

// TestHangingSearch: while a search hangs no other is begun, and when it has come back
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
