package bridge

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// busy is a hook that mounts as the driver does, leaves a process in the mount,
// and fails.
const busy = `options "$4"; mkfs.ext4 -q "$3" && mkdir -p "$2" && mount "$3" "$2" && losetup --detach "$3"
cd "$2"; sleep 600 9>&- & echo $! >%s; cd /; fail "no luck"`

// TestBusyAfterFailure: a mount that a failed call left, and to which a process still
// writes, is not hidden by a lazy unmount, and its device is not detached before the
// mount is gone.
func TestBusyAfterFailure(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	v := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
	pidFile := filepath.Join(w.dir, "pid")
	w.on("mountdevice", fmt.Sprintf(busy, pidFile))
	w.ok(v.attach())
	w.refused("stage", v.stage(), codes.Aborted, "no luck", "busy")
	data, err := os.ReadFile(pidFile)
	w.ok(err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	w.ok(err)
	end := func() { _ = unix.Kill(pid, unix.SIGKILL) }
	defer end()
	w.on("mountdevice", "")
	if v.stage() == nil {
		t.Error("what a failed mount left passes for the volume")
	}
	if v.unstage() == nil {
		t.Error("unstaged while it is written to")
	}
	w.refused("detach", v.detach(), codes.FailedPrecondition, "mounted")
	if !w.attachedTo("data") {
		t.Error("another node may have it by now")
	}
	end()
	w.eventually(v.stage)
	w.ok(v.publish())
	v.back()
	w.empty()
}

// TestDriverChangesBeforeUnmount: a driver that is not started gives nothing
// back, also when nothing is mounted that the host could see.
func TestDriverChangesBeforeUnmount(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	v := w.volume(w.run(scratch)[0], "pv-1", nil)
	taken := filepath.Join(w.dir, "taken")
	w.on("mount", `mkdir -p "$2"; >`+taken+`; answer '{"status":"Success"}'; exit 0`)
	w.on("unmount", `rm `+taken+`; answer '{"status":"Success"}'; exit 0`)
	w.ok(v.publish())
	// Half of it, as cp in place has it for a moment.
	path := filepath.Join(w.dir, "plugins/example.com~scratch/scratch")
	whole, err := os.ReadFile(path)
	w.ok(err)
	w.ok(os.Remove(path))
	w.ok(os.WriteFile(path, []byte("#!/nowhere/sh\n"), 0o755))
	unpublished := v.unpublish()
	if _, err := os.Stat(taken); (err == nil) == (unpublished == nil) {
		t.Errorf("unpublish: %v, and what the driver has taken: %v", unpublished, err)
	}
	w.write("scratch", string(whole))
	w.eventually(v.unpublish)
	if _, err := os.Stat(taken); err == nil {
		t.Error("the driver was never asked to give it back")
	}
	w.empty()
}
