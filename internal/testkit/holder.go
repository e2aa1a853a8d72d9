package testkit

import (
	"os/exec"
	"testing"
)

// StartHolder starts a program that holds something until its input ends, and returns when it has printed that it
// does. It ends with the test or by end, which may be repeated.
func StartHolder(t *testing.T, c *exec.Cmd) (end func()) {
	t.Helper()
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
	return end
}
