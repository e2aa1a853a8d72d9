package node

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/testkit"
)

// TestMountedOver: somebody mounts another filesystem over what a Pod has, at its path or above it.
// The Pod is told what it sees instead, also by an agent that is started meanwhile, until that is
// unmounted; the driver is not called.
func TestMountedOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ over, told string }{
		"at the target": {"mount", "mounted over volume pv-a"},
		"above it":      {"", "mounted over volume pv-a"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach(driverName))
			w.tune = verifyMounts
			d := newFakeDriver(driverName, w.dir)
			w.onDisk(d)
			d.start(t)
			w.run()
			w.mountVolume()
			over := filepath.Join(filepath.Dir(uses.TargetPath(w.dir, "uid-p", "pv-a", false)), c.over)
			w.must(nil, unix.Mount("https://me:hunter2@theirs/x", over, "tmpfs", 0, ""))
			w.awaitCondition("p", corev1.ConditionFalse, c.told)
			w.heard("Pod", "p", "MountBroken", "on node n1 tmpfs https://theirs/x is mounted over volume pv-a",
				"administrator of node n1")
			w.stop()
			w.run()
			w.awaitCondition("p", corev1.ConditionFalse, c.told)
			testkit.Unmount(w.t, over)
			w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
			if got := d.callsFor("h-a"); got != "stage publish" {
				t.Errorf("calls: %s", got)
			}
			w.checkNotDisclosed("hunter2", "")
			w.endPods("p")
		})
	}
}

// TestMountedOverAtTheHostPath: a mount over the path at which the host sees the volume is told, and what somebody
// unmounts there is mounted again.
func TestMountedOverAtTheHostPath(t *testing.T) {
	t.Parallel()
	w, d, host := shownAt(t)
	w.must(nil, unix.Mount("theirs", host, "tmpfs", 0, ""))
	w.awaitCondition("p", corev1.ConditionFalse, "tmpfs theirs is mounted over volume pv-a at "+host)
	testkit.Unmount(w.t, host)
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	testkit.Unmount(w.t, host)
	w.eventSaid("MountBroken", "another program has unmounted it")
	eventually(t, func() string {
		if _, mounted, err := mount.At(host); err != nil || !mounted {
			return "the host does not see the volume again"
		}
		return ""
	})
	w.end("p")
	w.awaitCleanup(d)
}

// TestStagedVolumeIsCovered: the driver would show the next Pod what is mounted over the staged volume, so that Pod
// waits. The Pod that has the volume keeps it.
func TestStagedVolumeIsCovered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.tune = verifyMounts
	d := newFakeDriver(driverName, w.dir)
	w.onDisk(d)
	d.start(t)
	w.run()
	w.mountVolume()
	staging := uses.StagingPath(w.dir, driverName, "h-a", "pv-a", false)
	w.must(nil, unix.Mount("theirs", staging, "tmpfs", 0, ""))
	w.pod("q", "a")
	w.awaitCondition("q", corev1.ConditionFalse, "tmpfs theirs is mounted over the staged volume pv-a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	testkit.Unmount(w.t, staging)
	w.awaitCondition("q", corev1.ConditionTrue, "v-a=")
	// What somebody unmounts is staged anew.
	before := strings.Count(d.history(), "stage:h-a")
	d.set(func() { clear(d.staged) })
	testkit.Unmount(w.t, staging)
	eventually(t, func() string {
		if _, mounted, err := mount.At(staging); err != nil || !mounted || strings.Count(d.history(), "stage:h-a") == before {
			return "it is not staged anew"
		}
		return ""
	})
	w.eventSaid("MountBroken", "the staged mount of volume pv-a on node n1 is gone")
	w.endPods("p", "q")
}
