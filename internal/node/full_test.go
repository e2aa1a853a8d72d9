package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/node/uses"
)

// smallDisk mounts a disk of 1 MiB at the agent's directory.
func (w *world) smallDisk() {
	w.t.Helper()
	w.must(nil, unix.Mount("none", w.dir, "tmpfs", 0, "size=1m"))
	w.t.Cleanup(func() {
		w.stop()
		w.detachAll()
	})
}

// fill uses all space of the agent's disk; the returned function frees some.
func (w *world) fill() (empty func()) {
	w.t.Helper()
	filler, err := os.OpenFile(filepath.Join(w.dir, "filler"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	w.must(nil, err)
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		w.t.Fatal(err)
	}
	w.must(nil, filler.Close())
	return func() { w.must(nil, os.Remove(filler.Name())) }
}

// TestTeardownOnAFullDisk: unmounts succeed without space, and a restart forgets neither what is
// mounted nor what is not.
func TestTeardownOnAFullDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.smallDisk()
	d := w.runWithDriver()
	w.addVolume(driverName, "a")
	w.addVolume(driverName, "b")
	for _, p := range []string{"p", "q"} {
		w.pod(p, "a")
		w.awaitCondition(p, corev1.ConditionTrue, "v-a=")
	}
	w.pod("last", "b")
	w.awaitCondition("last", corev1.ConditionTrue, "v-b=")
	w.fill()
	for _, p := range []string{"p", "last"} {
		w.end(p)
	}
	eventually(t, func() string {
		if used := fmt.Sprint(w.node().Status.VolumesInUse); strings.Contains(used, "h-b") || !strings.Contains(used, "h-a") {
			return "in use: " + used
		}
		return ""
	})
	empty := w.fill()
	w.addVolume(driverName, "c")
	w.pod("late", "c")
	w.awaitCondition("late", corev1.ConditionFalse, "no space left on device")
	if strings.Contains(d.history(), "stage:h-c") {
		t.Error("a volume was staged that nobody would find again")
	}
	w.stop()
	calls := d.history()
	w.run()
	// The record of a is in doubt, and a repeated step cannot be written: the Pod keeps the mount that it has.
	w.awaitCondition("q", corev1.ConditionFalse, "no space left on device")
	if has := "h-a h-a " + uses.TargetPath(w.dir, "uid-q", "pv-a", false); d.leftover() != has {
		t.Errorf("the driver has %s, wanted %s", d.leftover(), has)
	}
	w.end("q")
	for _, again := range []string{"unpublish:h-b", "unstage:h-b"} {
		if strings.Count(d.history(), again) != strings.Count(calls, again) {
			t.Errorf("called again: %s", again)
		}
	}
	empty()
	w.awaitCondition("late", corev1.ConditionTrue, "v-c=")
	w.endPods("late")
	if left := d.leftover(); left != "" {
		t.Errorf("left at the driver: %s", left)
	}
}

// TestDeathOnAFullDisk: the agent crashes before or after each effect of an unmount that it cannot
// write to the disk, and the next one completes it.
func TestDeathOnAFullDisk(t *testing.T) {
	t.Parallel()
	effects := runWithCrash(t, crashCase{full: true})
	for at, effect := range effects {
		if at < len(effects)/2 {
			continue
		}
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %s, after it: %v", at+1, effect, after), func(t *testing.T) {
				runWithCrash(t, crashCase{at: at + 1, after: after, full: true})
			})
		}
	}
}
