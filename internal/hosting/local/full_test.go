package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
)

// newSmallPool serves a driver whose pool is on a disk of 64 MiB.
func newSmallPool(t *testing.T) *poolDriver {
	t.Helper()
	return newKeptPool(t, 0)
}

// newKeptPool is the same, with space that is reserved for others.
func newKeptPool(t *testing.T, keep int64) *poolDriver {
	t.Helper()
	w := &poolDriver{T: t, dir: newDir(t), keep: keep}
	disk := filepath.Join(w.dir, "disk")
	w.pool = filepath.Join(disk, "pool")
	w.ok(os.Mkdir(disk, 0o700))
	w.ok(unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() {
		w.stop()
		testkit.Unmount(w, disk)
	})
	w.start()
	return w
}

// fillUp takes all space of the pool's disk, until free is called.
func (w *poolDriver) fillUp() (free func()) {
	w.Helper()
	path := filepath.Join(w.dir, "disk", "filler")
	f, err := os.Create(path)
	w.ok(err)
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 16
		} else {
			w.ok(err)
		}
	}
	return func() { w.ok(os.Remove(path)) }
}

func (w *poolDriver) capacity(r *csipb.GetCapacityRequest) (available, largest int64) {
	w.Helper()
	c, err := w.c.GetCapacity(w.Context(), r)
	w.ok(err)
	return c.GetAvailableCapacity(), c.GetMaximumVolumeSize().GetValue()
}

// TestCapacity: the reported capacity can be allocated, and it is zero for parameters
// that cannot be satisfied.
func TestCapacity(t *testing.T) {
	t.Parallel()
	w := newSmallPool(t)
	available, largest := w.capacity(&csipb.GetCapacityRequest{})
	usage, err := mount.Stat(w.pool)
	w.ok(err)
	if available != usage.Available || largest != 64*mib {
		t.Errorf("capacity %d, largest %d; the disk has %+v", available, largest, usage)
	}
	d := w.create("largest", largest, "block", nil)
	d.use()
	d.write("data")
	if now, _ := w.capacity(&csipb.GetCapacityRequest{}); now > available-4*mib {
		t.Errorf("capacity %d after 4 MiB were written, %d before", now, available)
	}
	d.end()
	if now, _ := w.capacity(&csipb.GetCapacityRequest{}); now < available-mib {
		t.Errorf("capacity %d after all was deleted, %d before", now, available)
	}
	_, err = w.c.CreateVolume(t.Context(), request("larger", largest+1, "block"))
	w.refused("larger than the disk", err, codes.OutOfRange, "disk", w.pool, "ask for less")
	modeless := capability("")
	modeless.AccessMode.Mode = csipb.VolumeCapability_AccessMode_UNKNOWN
	if _, of := w.capacity(&csipb.GetCapacityRequest{VolumeCapabilities: []*csipb.VolumeCapability{modeless}}); of !=
		largest {
		t.Errorf("largest volume for no mode %d, want %d", of, largest)
	}
	shared := capability("ext4")
	shared.AccessMode.Mode = csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	for name, r := range map[string]*csipb.GetCapacityRequest{
		"another pool": {AccessibleTopology: &csipb.Topology{Segments: map[string]string{volume.TopologyPool: "other"}}},
		"no pool":      {AccessibleTopology: &csipb.Topology{}},
		"shared":       {VolumeCapabilities: []*csipb.VolumeCapability{shared}},
		"unknown type": {VolumeCapabilities: []*csipb.VolumeCapability{capability("zfs")}},
	} {
		if available, _ := w.capacity(r); available != 0 {
			t.Errorf("capacity for %s: %d", name, available)
		}
	}
	w.empty()
}

// TestKept: reserved space is not reported as free, and nothing new is created once only
// that is left; existing volumes can be used, copied from and deleted.
func TestKept(t *testing.T) {
	t.Parallel()
	const keep = 48 * mib
	w := newKeptPool(t, keep)
	usage, err := mount.Stat(w.pool)
	w.ok(err)
	if available, _ := w.capacity(&csipb.GetCapacityRequest{}); available != usage.Available-keep {
		t.Errorf("capacity %d of %d, %d are kept", available, usage.Available, keep)
	}
	d := w.create("there", 32*mib, "block", nil)
	d.use()
	f, err := os.OpenFile(d.target, os.O_WRONLY, 0)
	w.ok(err)
	for at := range int64(5) {
		_, err := f.WriteAt(blob("data"), at*4*mib)
		w.ok(err)
	}
	w.ok(f.Sync())
	w.ok(f.Close())
	if available, _ := w.capacity(&csipb.GetCapacityRequest{}); available != 0 {
		t.Errorf("capacity %d when only what is kept is left", available)
	}
	for range 2 {
		_, err = w.c.CreateVolume(t.Context(), request("new", mib, "block"))
		w.refused("create", err, codes.ResourceExhausted, "48 MiB of it are kept for the control plane", "delete volumes")
		_, err = w.c.CreateSnapshot(t.Context(), &csipb.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.id})
		w.refused("snapshot", err, codes.ResourceExhausted, "48 MiB of it are kept for the control plane")
	}
	if _, err := w.c.CreateVolume(t.Context(), request("there", 32*mib, "block")); err != nil {
		t.Errorf("a volume that is there: %v", err)
	}
	d.holds("data")
	d.end()
	// A process that another test starts has a descriptor of the removed file until it runs its program.
	eventually(t, "room", func() bool {
		available, _ := w.capacity(&csipb.GetCapacityRequest{})
		return available > mib
	})
	again := w.create("new", mib, "block", nil)
	w.ok(w.delete(again.id))
	w.empty()
}

// TestCopyDoesNotFit: a copy that the disk cannot hold is refused, and what
// there was of it gives its space back.
func TestCopyDoesNotFit(t *testing.T) {
	t.Parallel()
	w := newSmallPool(t)
	d := w.create("v", 48*mib, "block", nil)
	d.use()
	f, err := os.OpenFile(d.target, os.O_WRONLY, 0)
	w.ok(err)
	for at := range int64(10) {
		_, err := f.WriteAt(blob("data"), at*4*mib)
		w.ok(err)
	}
	w.ok(f.Sync())
	w.ok(f.Close())
	before, _ := w.capacity(&csipb.GetCapacityRequest{})
	tree := w.tree()
	clone := request("clone", 48*mib, "block")
	clone.VolumeContentSource = fromVolume(d.id)
	for range 2 {
		_, err = w.c.CreateSnapshot(t.Context(), &csipb.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.id})
		w.refused("snapshot", err, codes.ResourceExhausted, snapshots.idOf("s"), "disk is full",
			"delete volumes or snapshots")
		_, err = w.c.CreateVolume(t.Context(), clone)
		w.refused("clone", err, codes.ResourceExhausted, volumes.idOf("clone"), "disk is full", "delete volumes or snapshots")
	}
	// A process that another test starts has a descriptor of the removed file until it runs its program.
	testkit.Eventually(t, 10*time.Second, func() string {
		if now, _ := w.capacity(&csipb.GetCapacityRequest{}); now < before {
			return fmt.Sprintf("%d bytes are lost", before-now)
		}
		return ""
	})
	for i, line := range w.tree() {
		if line != tree[i] {
			t.Errorf("left: %s", line)
			break
		}
	}
	d.holds("data")
	d.end()
	w.empty()
}

// TestFullPool: on a full disk nothing new is created, nothing is lost, and every call
// that frees space succeeds.
func TestFullPool(t *testing.T) {
	t.Parallel()
	w := newSmallPool(t)
	used, fresh, more := w.create("used", 16*mib, "ext4", nil), w.create("fresh", 16*mib, "ext4", nil),
		w.create("more", mib, "block", nil)
	used.use()
	used.write("data")
	w.ok(fresh.attach())
	before := w.tree()
	free := w.fillUp()
	w.Cleanup(func() { _ = os.Remove(filepath.Join(w.dir, "disk", "filler")) })
	if available, _ := w.capacity(&csipb.GetCapacityRequest{}); available != 0 {
		t.Errorf("capacity %d on a full disk", available)
	}
	_, err := w.c.CreateVolume(t.Context(), request("new", mib, "block"))
	w.refused("create", err, codes.ResourceExhausted, volumes.idOf("new"), "disk is full")
	w.refused("publish", more.attach(), codes.ResourceExhausted, "disk is full")
	w.refused("stage", fresh.stage(), codes.ResourceExhausted, "disk is full", w.pool)
	if all := loops(t, w.dir); len(all) != 1 {
		t.Errorf("devices of one volume that is in use: %v", all)
	}
	used.holds("data")
	w.restart()
	used.holds("data")
	used.rest()
	w.ok(fresh.detach())
	w.ok(w.delete(more.id))
	free()
	fresh.use()
	fresh.write("data")
	fresh.rest()
	used.use()
	used.holds("data")
	used.rest()
	w.ok(w.delete(fresh.id))
	w.ok(w.delete(used.id))
	w.empty()
	for _, line := range w.tree() {
		if strings.Contains(line, ".tmp") || strings.Contains(line, ".new") {
			t.Errorf("left: %s; before: %v", line, before)
		}
	}
}

// TestNoLoopDevice: the volume stays as it was, and the answer says what to do.
func TestNoLoopDevice(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	p := run(t, dir, "node", "LOCAL_DRIVER_TEST_NO_LOOP=1").serving("node")
	for _, fsType := range []string{"ext4", "block"} {
		d := p.create("v"+fsType, 16*mib, fsType, nil)
		p.ok(d.attach())
		p.ok(os.Remove(d.staging))
		before := p.tree()
		for range 2 {
			p.refused("stage", d.stage(), codes.ResourceExhausted, d.id, "no loop device is available", "max_loop")
			p.unchanged(before)
		}
		p.ok(d.unstage())
		p.ok(d.detach())
		p.ok(p.delete(d.id))
	}
	p.empty()
}
