package node

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
)

// TestMountedElsewhere: somebody has bind-mounted the volume at another directory. The Pod can be
// deleted, but the volume stays staged and in volumesInUse, so that it is not detached, until that
// mount is gone.
func TestMountedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Cleanup(w.detachAll)
	w.tune = verifyMounts
	d := newFakeDriver(driverName, w.dir)
	d.mountStage, d.mount = tmpfs, func(target string) error {
		if err := os.Mkdir(target, 0o700); err != nil {
			return err
		}
		return unix.Mount(uses.StagingPath(w.dir, driverName, "h-a", "", false), target, "", unix.MS_BIND, "")
	}
	d.start(t)
	w.run()
	w.registered(driverName)
	w.mountAttached()
	theirs, err := os.MkdirTemp("", "theirs-")
	w.must(nil, err)
	t.Cleanup(func() { _ = unix.Unmount(theirs, unix.MNT_DETACH); _ = os.RemoveAll(theirs) })
	w.must(nil, unix.Mount(uses.TargetPath(w.dir, "uid-p", "pv-a", false), theirs, "", unix.MS_BIND, ""))
	w.end("p")
	w.heard("VolumeAttachment", attach.NameOf(driverName, "h-a", "n1"), "FailedUnmount",
		"it is mounted by another program at "+theirs, "user")
	if got := w.node().Status.VolumesInUse; len(got) != 1 || string(got[0]) != volume.UniqueName(driverName, "h-a") {
		t.Errorf("the node says that it uses %v", got)
	}
	testkit.Unmount(w.t, theirs)
	w.awaitCleanup(d)
	eventually(t, func() string {
		if len(w.node().Status.VolumesInUse) > 0 {
			return "the node says that it uses the volume"
		}
		return ""
	})
}
