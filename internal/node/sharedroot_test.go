package node

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/mount"
)

// elsewhere calls f in a mount namespace of its own, which has the propagation that it was copied with, as a container
// has it whose volume propagates in both directions.
func elsewhere(f func() error) (err error) {
	mount.OnThreadOfItsOwn(func() {
		if err = unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err == nil {
			err = f()
		}
	})
	return err
}

// TestSharedRoot: where the host's mounts are private, the administrator makes the root directory a shared mount, as
// the documentation says. Then what a driver mounts in another mount namespace is a volume like any other, and the
// mount of the root directory is in nobody's way.
func TestSharedRoot(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{true, false} {
		w := newWorld(t)
		t.Cleanup(w.detachAll)
		w.must(nil, unix.Mount(w.dir, w.dir, "", unix.MS_BIND, ""))
		kind := uintptr(unix.MS_PRIVATE)
		if shared {
			kind = unix.MS_SHARED
		}
		w.must(nil, unix.Mount("", w.dir, "", kind, ""))
		w.tune = verifyMounts
		d := newFakeDriver(driverName, w.dir)
		far := func(target string) error { return elsewhere(func() error { return tmpfs(target) }) }
		d.mountStage, d.mount = far, far
		d.start(t)
		w.run()
		w.registered(driverName)
		w.attach(driverName, "a")
		w.addVolume(driverName, "a")
		w.pod("p", "a")
		if !shared {
			w.awaitCondition("p", corev1.ConditionFalse, "it is not in the mount table")
			w.stop()
			continue
		}
		w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
		w.stop()
		w.run()
		w.registered(driverName)
		w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
		w.endPods("p")
		events, err := w.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		w.must(nil, err)
		for _, e := range events.Items {
			if e.Reason == "MountUnknown" || strings.Contains(e.Message, "mounted at "+w.dir+":") {
				t.Errorf("told: %s: %s", e.Reason, e.Message)
			}
		}
		if left, err := mount.Below(w.dir); err != nil || len(left) != 1 || left[0].Path != w.dir {
			t.Errorf("mounted are %v, %v", left, err)
		}
	}
}
