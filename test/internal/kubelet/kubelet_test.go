package kubelet

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestGuard: when the guard's input ends, as after a kill of the process, a program that has changed the kernel is
// ended and the kernel restored.
func TestGuard(t *testing.T) {
	k := &Kubelet{}
	if err := k.wait(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.alone.Close() })
	const setting, ours = "/proc/sys/kernel/panic", "123"
	now := func() string {
		data, err := os.ReadFile(setting)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(data))
	}
	before := now()
	cmd := exec.Command("sh", "-c", guard, "guard", "sh", "-c", "echo "+ours+" >"+setting+" && exec sleep 1000")
	end, err := run(cmd)
	if err != nil {
		t.Fatal(err)
	}
	for deadline, tick := time.After(time.Minute), time.NewTicker(10*time.Millisecond); now() != ours; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the program has not begun")
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if got := now(); got != before {
		t.Errorf("the setting is %s, it was %s", got, before)
	}
}
