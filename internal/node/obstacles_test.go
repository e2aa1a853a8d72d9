package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// obstacle is something that prevents a mount.
type obstacle struct {
	put, take func(path string) error
	// want is what the Pod is told.
	want string
}

func removed(path string) error { return os.Remove(path) }

// replaceByLinkAbove moves the directory two levels above a path, and puts a symbolic link in its
// place.
func replaceByLinkAbove(path string) error {
	above := filepath.Dir(filepath.Dir(path))
	if err := os.Rename(above, above+".away"); err != nil {
		return err
	}
	return os.Symlink(above+".away", above)
}

func restoreAbove(path string) error {
	above := filepath.Dir(filepath.Dir(path))
	// At once: the agent makes what is missing.
	if err := unix.Renameat2(unix.AT_FDCWD, above, unix.AT_FDCWD, above+".away", unix.RENAME_EXCHANGE); err != nil {
		return err
	}
	return os.Remove(above + ".away")
}

func obstacles() map[string]obstacle {
	return map[string]obstacle{
		"a file": {
			func(at string) error { return os.WriteFile(at, []byte("data"), 0o600) }, removed, "another file is there: a file",
		},
		"a symbolic link": {
			func(at string) error { return os.Symlink("/etc", at) }, removed, "path is a symbolic link or passes through one",
		},
		"a stranger's mount": {
			tmpfs, func(at string) error { return unix.Unmount(at, 0) }, "another filesystem is mounted there",
		},
		"a directory with data": {
			func(at string) error { return os.MkdirAll(at+"/data", 0o700) },
			func(at string) error { return os.Remove(at + "/data") }, "a directory that is not empty",
		},
		"a link above": {replaceByLinkAbove, restoreAbove, "path is a symbolic link or passes through one"},
	}
}

// deviceObstacles prevent the publication of a block device, which replaces an empty file.
func deviceObstacles() map[string]obstacle {
	all := obstacles()
	delete(all, "a directory with data")
	away := all["a stranger's mount"]
	away.take = func(at string) error { return errors.Join(unix.Unmount(at, 0), os.Remove(at)) }
	all["a stranger's mount"] = away
	all["a directory"] = obstacle{
		func(at string) error { return os.Mkdir(at, 0o700) }, removed, "another file is there: a directory",
	}
	all["a stranger's device"] = obstacle{
		func(at string) error { return unix.Mknod(at, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))) }, removed,
		"another file is there: a device",
	}
	return all
}

// stageObstacles prevent staging. Files in the staging directory do not; they belong to the driver.
func stageObstacles() map[string]obstacle {
	all := obstacles()
	delete(all, "a directory with data")
	file := all["a file"]
	file.want = "not a directory"
	all["a file"] = file
	return all
}

// TestObstacles: an obstacle is neither hidden nor changed nor removed, and no agent calls the driver;
// an event of the Pod names it. When it is gone the volume is mounted. The Pod can be deleted before.
func TestObstacles(t *testing.T) {
	t.Parallel()
	staging := func(root string, block bool) string { return uses.StagingPath(root, driverName, "h-a", "pv-a", block) }
	target := func(root string, block bool) string { return uses.TargetPath(root, "uid-p", "pv-a", block) }
	for _, c := range []struct {
		name   string
		all    map[string]obstacle
		block  bool
		path   func(root string, block bool) string
		called string
	}{
		{"target", obstacles(), false, target, "publish:"},
		{"device", deviceObstacles(), true, target, "publish:"},
		{"staging path", stageObstacles(), false, staging, "stage:"},
		{"staging path of a device", stageObstacles(), true, staging, "stage:"},
	} {
		for name, o := range c.all {
			for _, goes := range []bool{false, true} {
				argues := c.name + " is " + name
				if goes {
					argues += ", and the Pod goes"
				}
				t.Run(argues, func(t *testing.T) {
					w := newWorld(t, noAttach(driverName))
					w.checkObstacle(o, c.path(w.dir, c.block), c.block, c.called, goes)
				})
			}
		}
	}
}

// checkObstacle puts an obstacle at a path that a Pod's volume needs.
func (w *world) checkObstacle(o obstacle, at string, block bool, called string, goes bool) {
	w.t.Helper()
	w.t.Cleanup(w.detachAll)
	w.tune = verifyMounts
	d := newFakeDriver(driverName, w.dir)
	d.mount = tmpfs
	mode := corev1.PersistentVolumeFilesystem
	if block {
		mode = corev1.PersistentVolumeBlock
		d.mount = func(path string) error { return unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 1))) }
	}
	d.start(w.t)
	w.run()
	w.registered(driverName)
	w.must(nil, os.MkdirAll(filepath.Dir(at), 0o700))
	w.must(nil, o.put(at))
	w.addVolume(driverName, "a", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(mode) })
	w.pod("p", "a")
	w.heard("Pod", "p", "FailedMount", o.want, "user")
	w.awaitCondition("p", corev1.ConditionFalse, o.want)
	w.stop()
	w.forgetEvents()
	w.run()
	w.heard("Pod", "p", "FailedMount", o.want, "user")
	if goes {
		w.end("p")
	}
	if got := d.history(); strings.Contains(got, called) {
		w.t.Errorf("calls: %s", got)
	}
	if err := o.take(at); err != nil {
		w.t.Errorf("it is not there any more: %v", err)
	}
	if !goes {
		w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
		w.end("p")
	}
	w.awaitCleanup(d)
}

func (w *world) forgetEvents() {
	w.t.Helper()
	events := w.client.CoreV1().Events("ns")
	all, err := events.List(w.t.Context(), metav1.ListOptions{})
	w.must(nil, err)
	for _, e := range all.Items {
		w.must(nil, events.Delete(w.t.Context(), e.Name, metav1.DeleteOptions{}))
	}
}

// TestHostPathObstacles: a volume is bind-mounted only at a directory of the host, and hides no other
// mount.
func TestHostPathObstacles(t *testing.T) {
	t.Parallel()
	all := obstacles()
	for name, o := range map[string]obstacle{
		"is a file": {
			all["a file"].put, func(at string) error { return errors.Join(os.Remove(at), os.Mkdir(at, 0o700)) },
			"is not a directory",
		},
		"is a symbolic link": {
			all["a symbolic link"].put, func(at string) error { return errors.Join(os.Remove(at), os.Mkdir(at, 0o700)) },
			"is not a directory",
		},
		"is a stranger's mount": {
			all["a stranger's mount"].put, all["a stranger's mount"].take, "another filesystem is mounted there",
		},
		"is not there": {
			func(string) error { return nil }, func(at string) error { return os.Mkdir(at, 0o700) },
			"create the directory first",
		},
		"is below a link": {
			func(at string) error { return errors.Join(os.Mkdir(at, 0o700), replaceByLinkAbove(at)) },
			restoreAbove, "passes through one",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach(driverName))
			d := w.mounting(nil, tmpfs)
			host, err := os.MkdirTemp("", "host-")
			w.must(nil, err)
			at := filepath.Join(host, "a/b/at")
			t.Cleanup(func() { _ = os.RemoveAll(host) })
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			w.must(nil, os.MkdirAll(filepath.Dir(at), 0o700))
			w.must(nil, o.put(at))
			w.addVolume(driverName, "a")
			w.podWith("p", func(p *corev1.Pod) { p.Annotations = map[string]string{volume.AnnMountAt: at} }, "a")
			w.heard("Pod", "p", "FailedMount", o.want, "user")
			w.awaitCondition("p", corev1.ConditionFalse, o.want)
			w.must(nil, o.take(at))
			w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
			if _, mounted, err := mount.At(at); err != nil || !mounted {
				t.Errorf("nothing is mounted at %s: %v", at, err)
			}
			w.end("p")
			w.awaitCleanup(d)
			if _, mounted, err := mount.At(at); err != nil || mounted {
				t.Errorf("it is still mounted at %s: %v", at, err)
			}
		})
	}
}

// awaitCleanup waits until neither the driver nor the journal has anything of any volume.
func (w *world) awaitCleanup(d *fakeDriver) {
	w.t.Helper()
	eventually(w.t, func() string {
		if left, _ := filepath.Glob(filepath.Join(w.dir, "journal", "*.json*")); len(left) > 0 || d.leftover() != "" {
			return "left: " + strings.Join(left, " ") + " " + d.leftover()
		}
		return ""
	})
}
