package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
)

// shownAt is a world in which Pod p has its volume, a filesystem of its own, at a
// directory of the host, too.
func shownAt(t *testing.T) (w *world, d *fakeDriver, host string) {
	t.Helper()
	w = newWorld(t, noAttach(driverName))
	d = w.mounting(nil, tmpfs)
	host, err := os.MkdirTemp("", "host-")
	w.must(nil, err)
	t.Cleanup(func() { _ = os.RemoveAll(host) })
	t.Cleanup(func() {
		for unix.Unmount(host, unix.MNT_DETACH) == nil {
		}
	})
	w.addVolume(driverName, "a")
	w.podWith("p", func(p *corev1.Pod) { p.Annotations = map[string]string{volume.AnnMountAt: host} }, "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	return w, d, host
}

// TestHostPathGoesAfterATargetMadeAnew: somebody has unmounted the volume at its
// Pod, and the driver has mounted it anew, as another filesystem. What still
// shows the first one goes with the Pod: nothing of it may be mounted when it is
// detached.
func TestHostPathGoesAfterATargetMadeAnew(t *testing.T) {
	t.Parallel()
	w, d, host := shownAt(t)
	target := filepath.Join(w.dir, "pods/uid-p/volumes/kubernetes.io~csi/pv-a/mount")
	first, _, err := mount.At(target)
	w.must(nil, err)
	testkit.Unmount(w.t, target)
	d.set(func() { clear(d.published) })
	eventually(t, func() string {
		w.agent.volumes.AddAll("")
		if now, mounted, err := mount.At(target); err != nil || !mounted || now.Device == first.Device {
			return "it is not mounted anew"
		}
		return ""
	})
	w.end("p")
	w.awaitCleanup(d)
	if at, mounted, err := mount.At(host); err != nil || mounted {
		t.Errorf("at the host path there is still %+v, %v", at, err)
	}
}

// TestHostPathIsCovered: somebody has mounted something over the volume at the
// host path. It stays, and the volume is not let go as long as it is mounted
// below it.
func TestHostPathIsCovered(t *testing.T) {
	t.Parallel()
	w, d, host := shownAt(t)
	w.must(nil, unix.Mount("theirs", host, "tmpfs", 0, ""))
	w.terminate("p")
	w.heard("Pod", "p", "FailedUnmount", "another filesystem is mounted there: theirs", "user")
	if at, mounted, err := mount.At(host); err != nil || !mounted || at.Source != "theirs" {
		t.Fatalf("at the host path there is %+v, %v", at, err)
	}
	if d.leftover() == "" {
		t.Error("the volume is let go while it is mounted")
	}
	testkit.Unmount(w.t, host)
	w.awaitDeletion("p")
	w.awaitCleanup(d)
	if at, mounted, err := mount.At(host); err != nil || mounted {
		t.Errorf("at the host path there is still %+v, %v", at, err)
	}
}

// TestNestedHostPaths: the volume of one Pod is wanted in that of another, as after a boot, and comes after it.
func TestNestedHostPaths(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	t.Cleanup(w.detachAll)
	w.tune = verifyMounts
	d := newFakeDriver(driverName, w.dir)
	var ready atomic.Bool
	d.mount = func(target string) error {
		if !strings.Contains(target, "pv-a") {
			return tmpfs(target)
		}
		if !ready.Load() {
			return errors.New("slow")
		}
		return errors.Join(tmpfs(target), os.Mkdir(filepath.Join(target, "in"), 0o700))
	}
	d.start(t)
	host := t.TempDir()
	t.Cleanup(func() { _ = mount.Detach(host) })
	in := filepath.Join(host, "in")
	w.must(nil, os.Mkdir(in, 0o700))
	for name, at := range map[string]string{"a": host, "b": in} {
		w.addVolume(driverName, name)
		w.podWith("of-"+name, func(p *corev1.Pod) { p.Annotations = map[string]string{volume.AnnMountAt: at} }, name)
	}
	w.run()
	w.awaitCondition("of-b", corev1.ConditionFalse, "pod ns/of-a gets its volume at "+host+" first")
	if _, mounted, err := mount.At(in); err != nil || mounted {
		t.Errorf("mounted %t, %v", mounted, err)
	}
	ready.Store(true)
	w.awaitCondition("of-a", corev1.ConditionTrue, "v-a=")
	w.awaitCondition("of-b", corev1.ConditionTrue, "v-b=")
	for _, path := range []string{host, in} {
		if _, mounted, err := mount.At(path); err != nil || !mounted {
			t.Errorf("%s: mounted %t, %v", path, mounted, err)
		}
	}
}
