package node

import (
	"os"
	"path/filepath"
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
	t.Cleanup(w.detachAll)
	w.tune = verifyMounts
	d = newFakeDriver(driverName, w.dir)
	d.mount = tmpfs
	d.start(t)
	w.run()
	w.registered(driverName)
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
	w.terminate("p")
	w.awaitDeletion("p")
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
	w.heard("Pod", "p", "FailedUnmount", "something else is mounted there: theirs", "user")
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
