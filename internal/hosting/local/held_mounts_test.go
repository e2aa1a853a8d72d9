package local

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit"
)

// holder is a process with a mount namespace of its own, older than an unmount, such as a container that was just
// being started: it keeps everything mounted that was mounted when it began.
type holder struct {
	*testing.T
	pid int
	end func()
}

// newHolder starts one that holds what is mounted below dir. It immediately releases what other tests have mounted.
func newHolder(t *testing.T, dir string) holder {
	t.Helper()
	const script = `awk -v dir="$1/" '$1 ~ "^/dev/loop" && index($2, dir) != 1 { print $2 }' /proc/self/mounts |
		xargs -r umount -l; echo ready; read x`
	c := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", script, "sh", dir)
	end := testkit.StartHolder(t, c)
	return holder{t, c.Process.Pid, end}
}

// named wants that a call was refused for the sake of the holder.
func (h holder) named(w *poolDriver, what string, err error) {
	h.Helper()
	w.refused(what, err, codes.FailedPrecondition, fmt.Sprintf("process %d (sh; a copy in mount namespace mnt:[", h.pid),
		"still has /dev/loop", "open; end that first")
}

// held is a volume with data that was unpublished, and cannot be unstaged because of a holder.
func held(t *testing.T, w *poolDriver, fsType string) (*disk, holder) {
	t.Helper()
	d := w.create("v", smallest(fsType), fsType, nil)
	d.use()
	d.write("data")
	h := newHolder(t, w.dir)
	w.ok(d.unpublish())
	h.named(w, "unstage", d.unstage())
	return d, h
}

// oneDevice returns the only loop device of the pool.
func (w *poolDriver) oneDevice() string {
	w.Helper()
	all := loops(w.T, w.dir)
	for device := range all {
		if len(all) == 1 {
			return device
		}
	}
	w.Fatalf("devices: %v", all)
	return ""
}

// TestStagedAgain: an unstage that cannot complete because another mount namespace has the volume does not keep the
// volume from being used again on the node. It has the same device, and no data is lost.
func TestStagedAgain(t *testing.T) {
	t.Parallel()
	for _, fsType := range kinds() {
		if fsType == "block" {
			continue // see TestOpenDevice
		}
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()
			w := newPoolDriver(t)
			d, h := held(t, w, fsType)
			device := w.oneDevice()
			w.ok(d.stage())
			w.ok(d.stage())
			w.ok(d.publish(false))
			if now := w.oneDevice(); now != device {
				t.Errorf("the device was %s and is %s", device, now)
			}
			d.holds("data")
			d.write("more")
			before := d.size()
			w.ok(d.unpublish())
			h.named(w, "second unstage", d.unstage())
			// It was expanded in the meantime, and its filesystem cannot be expanded as if it were not mounted.
			d.expand(2 * smallest(fsType))
			w.ok(d.stage())
			w.ok(d.publish(false))
			d.holds("more")
			grown := d.nodeExpand()
			if grown != nil && fsType == "ext4" {
				w.refused("expand ext4 in use", grown, codes.FailedPrecondition, "when it is next mounted")
			} else if now := d.size(); grown != nil || now < before*3/2 {
				t.Errorf("%d bytes before, %d after: %v", before, now, grown)
			}
			// Nothing more is left to do when the holder ends: the volume stays.
			h.end()
			d.holds("more")
			d.rest()
			if all := loops(t, w.dir); len(all) > 0 {
				t.Errorf("devices are left: %v", all)
			}
			d.use()
			if now := d.size(); now < before*3/2 {
				t.Errorf("%d bytes before, %d in the end", before, now)
			}
			d.holds("more")
			d.end()
			w.empty()
		})
	}
}

// TestStagedOtherwise: while a process still has the volume's filesystem mounted, the kernel would give the next mount
// the options of the first. A request with other options is refused, and so are a single writer, another node and the
// deletion.
func TestStagedOtherwise(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	a, b := run(t, dir, "a").serving("a"), run(t, dir, "b").serving("b")
	v, err := a.c.CreateVolume(t.Context(), request("v", 16*mib, "ext4"))
	a.ok(err)
	d := a.disk("v", v.GetVolume().GetVolumeId(), "ext4")
	a.ok(a.publishTo(d.id, "a"))
	a.ok(d.stage("discard"))
	a.ok(d.publish(false))
	d.write("data")
	h := newHolder(t, dir)
	a.ok(d.unpublish())
	h.named(a.poolDriver, "unstage", d.unstage())
	h.named(a.poolDriver, "read-only", d.stage("discard", "ro"))
	h.named(a.poolDriver, "other options", d.stage())
	c := capability("ext4", "discard")
	c.AccessMode.Mode = csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	_, err = a.n.NodeStageVolume(t.Context(),
		&csipb.NodeStageVolumeRequest{VolumeId: d.id, StagingTargetPath: d.staging, VolumeCapability: c})
	h.named(a.poolDriver, "single writer", err)

	a.ok(insist(func() error { return unpublishFrom(a.poolDriver, d.id, "a") }))
	h.named(a.poolDriver, "delete", a.delete(d.id))
	// The node is given up, and the volume moves by force.
	a.ok(a.publishTo(d.id, "b"))
	h.named(b.poolDriver, "stage elsewhere", b.disk("w", d.id, "ext4").stage("discard"))
	a.ok(unpublishFrom(a.poolDriver, d.id, "b"))
	// The node that had it can use it again.
	a.ok(a.publishTo(d.id, "a"))
	a.ok(d.stage("discard"))
	a.ok(d.publish(false))
	d.holds("data")
	a.ok(d.unpublish())
	h.named(a.poolDriver, "unstage again", d.unstage())
	h.end()
	a.ok(d.unstage())
	a.ok(unpublishFrom(a.poolDriver, d.id, "a"))
	a.ok(a.publishTo(d.id, "b"))
	e := b.disk("w", d.id, "ext4")
	a.ok(e.stage())
	a.ok(e.publish(false))
	e.holds("data")
	a.ok(e.unpublish())
	a.ok(e.unstage())
	a.ok(unpublishFrom(a.poolDriver, d.id, "b"))
	a.ok(a.delete(d.id))
	a.empty()
}

func unpublishFrom(w *poolDriver, id, node string) error {
	_, err := w.c.ControllerUnpublishVolume(w.Context(),
		&csipb.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: node})
	return err
}

// TestKilledAgain kills the driver after it has taken the device of a held volume again and before it has mounted it:
// another node does not get the volume then, and the next driver of this one ends what was begun.
func TestKilledAgain(t *testing.T) {
	dir := newDir(t)
	p := run(t, dir, "node").serving("node")
	d, h := held(t, p.poolDriver, "ext4")
	p.end(unix.SIGTERM)
	bin := t.TempDir()
	began := filepath.Join(bin, "began")
	script := "#!/bin/sh\ntouch " + began + "\nwhile [ -e " + bin + " ]; do sleep 0.01; done\n"
	p.ok(os.WriteFile(filepath.Join(bin, "mount"), []byte(script), 0o700)) //nolint:gosec // it is to be run
	path := os.Getenv("PATH")
	t.Setenv("PATH", bin+":"+path)
	p = run(t, dir, "node").serving("node")
	d.poolDriver = p.poolDriver
	staged := make(chan error, 1)
	go func() { staged <- d.stage() }()
	eventually(t, "mount", func() bool { _, err := os.Stat(began); return err == nil })
	p.end(unix.SIGKILL)
	p.refused("stage by a driver that is killed", <-staged, codes.Unavailable)
	p.ok(os.RemoveAll(bin))
	t.Setenv("PATH", path)

	other := run(t, dir, "other").serving("other")
	other.ok(unpublishFrom(other.poolDriver, d.id, "node"))
	other.ok(other.publishTo(d.id, "other"))
	h.named(other.poolDriver, "stage elsewhere", other.disk("w", d.id, "ext4").stage())
	other.ok(unpublishFrom(other.poolDriver, d.id, "other"))

	p = run(t, dir, "node").serving("node")
	d.poolDriver = p.poolDriver
	p.ok(d.attach())
	h.named(p.poolDriver, "other options", d.stage("discard"))
	p.ok(d.stage())
	p.ok(d.publish(false))
	d.holds("data")
	h.end()
	d.rest()
	d.sound()
	p.ok(p.delete(d.id))
	p.empty()
}

// TestOldDevice: a device that another version of the driver has created does not record its users. It is used, but
// not a second time while it is in use.
func TestOldDevice(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.written()
	_, err := new(mount.Loops).Attach(d.image(), false)
	w.ok(err)
	d.use()
	h := newHolder(t, w.dir)
	w.ok(d.unpublish())
	h.named(w, "unstage", d.unstage())
	h.named(w, "stage", d.stage())
	h.end()
	w.ok(d.unstage())
	d.use()
	d.holds("data")
	d.end()
	w.empty()
}

// TestNotes: a device is used again only by the node that had it, and as it had it.
func TestNotes(t *testing.T) {
	t.Parallel()
	me := use{node: "me", how: "ext4"}
	for _, row := range []struct {
		name, note string
		s          mount.LoopState
		shown      bool
		alone      bool
		want       string
	}{
		{name: "a new device", note: me.note(), want: me.note()},
		{name: "mounted here", note: me.note(), s: mount.LoopState{Claimed: true}, shown: true, want: me.note()},
		{name: "detached in vain", note: me.note(), s: mount.LoopState{AutoClear: true, Claimed: true}, want: me.note()},
		{name: "and kept by a dead driver", note: me.note(), s: mount.LoopState{Claimed: true}, want: me.note()},
		{name: "open as a raw device", note: "volplane:me:block", s: mount.LoopState{AutoClear: true}, want: me.note()},
		{name: "other options", note: "volplane:me:xfs", s: mount.LoopState{AutoClear: true, Claimed: true}},
		{name: "other options, kept", note: "volplane:me:xfs", s: mount.LoopState{Claimed: true}},
		{
			name: "the first mount decides", note: "volplane:me:xfs", s: mount.LoopState{Claimed: true}, shown: true,
			want: "volplane:me:xfs",
		},
		{name: "one writer", note: me.note(), s: mount.LoopState{AutoClear: true, Claimed: true}, alone: true},
		{name: "one writer of an unused device", note: me.note(), alone: true, want: me.note()},
		{
			name: "of a dead node", note: "volplane:you:ext4", s: mount.LoopState{Claimed: true}, shown: true,
			want: "volplane:several:ext4",
		},
		{name: "of another node, unused", note: "volplane:you:xfs", want: "volplane:several:ext4"},
		{name: "of another node, detached in vain", note: "volplane:you:ext4", s: mount.LoopState{AutoClear: true}},
		{name: "of another node, kept", note: "volplane:you:ext4", s: mount.LoopState{Claimed: true}},
		{name: "of several", note: "volplane:several:ext4", s: mount.LoopState{AutoClear: true, Claimed: true}},
		{name: "of an older driver", note: "/pool/disk.img", want: "volplane:several:ext4"},
		{
			name: "of an older driver, checked by it", note: "/pool/disk.img", s: mount.LoopState{Claimed: true},
			want: "volplane:several:",
		},
		{name: "of an older driver, detached in vain", note: "/pool/disk.img", s: mount.LoopState{AutoClear: true}},
	} {
		me.alone = row.alone
		row.s.Note = row.note
		got, err := me.again(row.s, row.shown)
		if got != row.want || (err != nil) != (row.want == "") {
			t.Errorf("%s: %q, %v", row.name, got, err)
		}
	}
	if note := (use{node: strings.Repeat("n", noteDigest), how: strings.Repeat("h", noteDigest)}).note(); len(note) > 63 {
		t.Errorf("a note of %d bytes does not fit", len(note))
	}
}
