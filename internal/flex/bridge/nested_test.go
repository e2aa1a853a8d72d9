package bridge

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit"
)

const nested = "nested.example.com"

// nest installs a driver that mounts as one of sshfs and gocryptfs does: a small
// tmpfs at the directory, and below that the back end and the view of it that
// Pods are to use. What is not written there is lost.
func (w *bridged) nest(script string) {
	w.Helper()
	backend := filepath.Join(w.dir, "pool")
	w.ok(os.MkdirAll(filepath.Join(backend, "view"), 0o700))
	w.write("nested", `#!/bin/sh
set -e
exec 3>&1 >/dev/null 2>&1
case $1 in
init) echo '{"status":"Success","capabilities":{"attach":false}}' >&3 ;;
mount) `+script+`; echo '{"status":"Success"}' >&3 ;;
unmount) umount -R "$2" || { umount "$2/data"; rmdir "$2/data"; }; echo '{"status":"Success"}' >&3 ;;
*) echo '{"status":"Not supported"}' >&3; exit 1 ;;
esac
`)
}

// layers is what such a driver does in mount.
func (w *bridged) layers() string {
	return `mount -t tmpfs -o size=64k small "$2"; mkdir "$2/cipher" "$2/data"
mount --bind ` + w.dir + `/pool "$2/cipher"; mount --bind ` + w.dir + `/pool/view "$2/data"`
}

// inBackend wants a file of the back end to hold what was written to it.
func (w *bridged) inBackend(name, want string) {
	w.Helper()
	if got, err := os.ReadFile(filepath.Join(w.dir, "pool", name)); err != nil || string(got) != want {
		w.Errorf("the back end's %s has %q, %v; want %q", name, got, err, want)
	}
}

// TestMountsBelow: what a driver mounts below its directory is in the Pod, and
// nothing of it is left afterwards, but for what is in the back end.
func TestMountsBelow(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]uintptr{"shared": unix.MS_SHARED, "private": unix.MS_PRIVATE} {
		t.Run(name, func(t *testing.T) {
			w := newBridged(t)
			w.ok(unix.Mount(w.dir, w.dir, "", unix.MS_BIND, ""))
			t.Cleanup(func() { w.ok(unix.Unmount(w.dir, unix.MNT_DETACH)) })
			w.ok(unix.Mount("", w.dir, "", shared, ""))
			w.nest(w.layers())
			v := w.volume(w.run(nested)[0], "pv-1", nil)
			for range 2 {
				w.ok(v.publish())
				w.ok(v.publish())
				w.ok(os.WriteFile(v.target+"/data/file", []byte("secret"), 0o600))
				w.inBackend("view/file", "secret")
				w.ok(os.Remove(w.dir + "/pool/view/file"))
				w.ok(v.unpublish())
				w.ok(v.unpublish())
				points, err := mount.Below(w.dir)
				if err != nil || len(points) != 1 {
					t.Errorf("left mounted: %v, %v", points, err)
				}
			}
			v.readOnly = true
			w.ok(v.publish())
			if err := os.WriteFile(v.target+"/data/file", nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("a read-only volume was written to: %v", err)
			}
			w.ok(v.unpublish())
			w.stop()
		})
	}
}

// TestMountsBelowOnly: there are drivers that mount nothing at the directory
// itself, as that of sockets does that are made for each Pod.
func TestMountsBelowOnly(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.nest(`mkdir -p "$2/data"; mount --bind ` + w.dir + `/pool/view "$2/data"`)
	v := w.volume(w.run(nested)[0], "pv-1", nil)
	w.ok(v.publish())
	w.ok(os.WriteFile(v.target+"/data/file", []byte("there"), 0o600))
	w.inBackend("view/file", "there")
	// If a mount below is removed, the volume is gone.
	dir := filepath.Join(w.root, "pods/uid-1/volumes/example.com~nested/pv-1/data")
	w.ok(errors.Join(unix.Unmount(v.target+"/data", 0), unix.Unmount(dir, 0)))
	w.ok(v.publish())
	w.ok(os.WriteFile(v.target+"/data/file", []byte("again"), 0o600))
	w.inBackend("view/file", "again")
	w.ok(v.unpublish())
	w.empty()
}

// TestMountBelowIsGone: one of a driver's mounts is gone, as when a daemon ends
// well. Data written beside it would be lost, so the volume counts as not mounted, and is
// mounted again.
func TestMountBelowIsGone(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.nest(w.layers())
	v := w.volume(w.run(nested)[0], "pv-1", nil)
	w.ok(v.publish())
	testkit.Unmount(w.T, v.target+"/data")
	w.ok(v.publish())
	w.ok(os.WriteFile(v.target+"/data/file", []byte("there"), 0o600))
	w.inBackend("view/file", "there")
	w.ok(v.unpublish())
	w.empty()
}

// TestMountBelowInUse: it is not taken from under who uses it, and a refusal
// leaves it whole.
func TestMountBelowInUse(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.nest(w.layers())
	v := w.volume(w.run(nested)[0], "pv-1", nil)
	w.ok(v.publish())
	used, err := os.Create(v.target + "/data/file")
	w.ok(err)
	if v.unpublish() == nil {
		t.Error("it was taken away")
	}
	_, err = used.WriteString("written")
	w.ok(err)
	w.ok(used.Close())
	w.inBackend("view/file", "written")
	w.ok(v.unpublish())
	w.empty()
}
