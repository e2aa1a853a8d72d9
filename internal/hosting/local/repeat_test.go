package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/mount"
)

// insist makes a call again while others hold what it needs for longer than it
// waits, as callers of CSI do: on a slow disk that may be.
func insist(call func() error) error {
	tick, limit := time.NewTicker(pollInterval), time.After(time.Minute)
	defer tick.Stop()
	for {
		err := call()
		if status.Code(err) != codes.Aborted {
			return err
		}
		select {
		case <-tick.C:
		case <-limit:
			return err
		}
	}
}

// together makes eight concurrent calls, and then one more.
func (w *poolDriver) together(what string, call func() error) {
	w.Helper()
	var g sync.WaitGroup
	for range 8 {
		g.Go(func() {
			if err := insist(call); err != nil {
				w.Errorf("%s: %v", what, err)
			}
		})
	}
	g.Wait()
	if err := call(); err != nil {
		w.Errorf("%s again: %v", what, err)
	}
}

// TestTogether: concurrent repetitions of each call all succeed, and the work is done once.
func TestTogether(t *testing.T) {
	t.Parallel()
	for _, fsType := range kinds() {
		t.Run(fsType, func(t *testing.T) {
			w := newPoolDriver(t)
			size := smallest(fsType)
			d := w.disk("v", volumes.idOf("v"), fsType)
			d.createTogether("v", nil)
			w.together("publish", d.attach)
			w.together("stage", func() error { return d.stage() })
			if all := loops(t, w.dir); len(all) != 1 {
				t.Fatalf("one volume has the devices %v", all)
			}
			w.together("publish at target", func() error { return d.publish(false) })
			if points, err := mount.Below(d.target); err != nil || len(points) != 1 {
				t.Errorf("mounts at the target: %v, %v", points, err)
			}
			d.write("data")
			d.snapshotTogether("s")
			d.createTogether("c", fromVolume(d.id))
			d.createTogether("r", fromSnapshot(snapshots.idOf("s")))
			d.expandTogether(2 * size)
			if fsType != "ext4" {
				w.together("expand on the node", d.nodeExpand)
			}
			d.holds("data")
			w.together("unpublish at target", d.unpublish)
			w.together("unstage", d.unstage)
			w.together("unpublish", d.detach)
			for _, id := range []string{d.id, volumes.idOf("c"), volumes.idOf("r"), snapshots.idOf("s")} {
				w.together("delete "+id, func() error { return w.delete(id) })
			}
			w.empty()
			if all := loops(t, w.dir); len(all) != 0 {
				t.Errorf("left: %v", all)
			}
		})
	}
}

func (d *disk) createTogether(name string, source *csipb.VolumeContentSource) {
	d.Helper()
	r := request(name, smallest(d.fsType), d.fsType)
	r.VolumeContentSource = source
	d.together("create "+name, func() error {
		v, err := d.c.CreateVolume(d.Context(), r)
		if err == nil && v.GetVolume().GetVolumeId() != volumes.idOf(name) {
			d.Errorf("made %v", v)
		}
		return err
	})
}

func (d *disk) snapshotTogether(name string) {
	d.Helper()
	d.together("snapshot", func() error {
		s, err := d.c.CreateSnapshot(d.Context(), &csipb.CreateSnapshotRequest{Name: name, SourceVolumeId: d.id})
		if err == nil && (s.GetSnapshot().GetSnapshotId() != snapshots.idOf(name) || !s.GetSnapshot().GetReadyToUse()) {
			d.Errorf("made %v", s)
		}
		return err
	})
}

func (d *disk) expandTogether(size int64) {
	d.Helper()
	d.together("expand", func() error {
		r, err := d.c.ControllerExpandVolume(d.Context(),
			&csipb.ControllerExpandVolumeRequest{VolumeId: d.id, CapacityRange: &csipb.CapacityRange{RequiredBytes: size}})
		if err == nil && (r.GetCapacityBytes() != size || !r.GetNodeExpansionRequired()) {
			d.Errorf("expanded %v", r)
		}
		return err
	})
}

// TestCopiesTogether: a volume may be copied while it is written to, grown and
// copied.
func TestCopiesTogether(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 64*mib, "ext4", nil)
	d.use()
	d.write("data")
	var g sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		g.Go(func() { d.write("data") })
		g.Go(func() {
			if err := insist(func() error {
				_, err := w.c.CreateSnapshot(t.Context(), &csipb.CreateSnapshotRequest{Name: name, SourceVolumeId: d.id})
				return err
			}); err != nil {
				t.Error(err)
			}
		})
		g.Go(func() {
			r := request(name, 512*mib, "ext4")
			r.VolumeContentSource = fromVolume(d.id)
			if err := insist(func() error { _, err := w.c.CreateVolume(t.Context(), r); return err }); err != nil {
				t.Error(err)
			}
		})
		g.Go(func() { d.expand(128 * mib) })
	}
	g.Wait()
	d.rest()
	for _, name := range []string{"a", "b", "c", "d"} {
		restored := w.create("restored"+name, 512*mib, "ext4", fromSnapshot(snapshots.idOf(name)))
		for _, c := range []*disk{restored, w.disk(name, volumes.idOf(name), "ext4")} {
			c.use()
			c.holds("data")
			c.end()
		}
		w.ok(w.delete(snapshots.idOf(name)))
	}
	w.ok(w.delete(d.id))
	w.empty()
}

// TestReadWhileDeleted: a volume that is being created or deleted exists or does not, and
// is never reported as damaged.
func TestReadWhileDeleted(t *testing.T) {
	t.Parallel()
	p, err := openPool(filepath.Join(newDir(t), "pool"), "node")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	id := volumes.idOf("v")
	done := make(chan struct{})
	var g sync.WaitGroup
	for range 3 {
		g.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := p.get(volumes, id); err != nil && !errors.Is(err, errMissing) {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 100 {
		_, err := p.add(t.Context(), volumes, record{ID: id, Name: "v", Size: mib}, func(*os.File) error { return nil })
		if err == nil {
			err = p.remove(volumes, id, func(record) error { return nil })
		}
		if err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	g.Wait()
}

// TestGrow: xfs, btrfs and raw devices are expanded while they are in use; ext4 if the
// kernel allows it, and at its next stage otherwise.
func TestGrow(t *testing.T) {
	t.Parallel()
	for _, fsType := range kinds() {
		t.Run(fsType, func(t *testing.T) {
			w := newPoolDriver(t)
			size := smallest(fsType)
			d := w.create("v", size, fsType, nil)
			d.use()
			d.write("data")
			before := d.size()
			d.expand(2 * size)
			switch err := d.nodeExpand(); {
			case err == nil:
			case fsType == "ext4":
				w.refused("expand ext4 in use", err, codes.FailedPrecondition, "when it is next mounted")
				d.rest()
				d.use()
			default:
				t.Fatal(err)
			}
			w.ok(d.nodeExpandAgain(fsType))
			if got := d.size(); got < before+size*8/10 {
				t.Errorf("%d bytes before, %d after", before, got)
			}
			d.holds("data")
			d.rest()
			// While it is not in use; the device is seen to be larger immediately.
			before = 2 * size
			d.expand(3 * size)
			d.use()
			if got := d.size(); got < before+size/2 {
				t.Errorf("%d bytes before, %d after the stage", before, got)
			}
			d.holds("data")
			d.end()
			w.empty()
		})
	}
}

// nodeExpandAgain repeats what is done.
func (d *disk) nodeExpandAgain(fsType string) error {
	err := d.nodeExpand()
	if fsType == "block" && err == nil {
		// Where the device is staged there is no mount to name.
		_, err = d.n.NodeExpandVolume(d.Context(), &csipb.NodeExpandVolumeRequest{
			VolumeId: d.id, VolumePath: d.staging, StagingTargetPath: d.staging, VolumeCapability: capability("block"),
		})
	}
	return err
}

// TestReadOnly: what is published read-only is, raw devices too; the same call
// again is well, another one is not.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	for _, fsType := range []string{"ext4", "block"} {
		w := newPoolDriver(t)
		d := w.create("v", 16*mib, fsType, nil)
		d.use()
		d.write("data")
		w.refused("read-only where it is writable", d.publish(true), codes.AlreadyExists, d.id, d.target,
			"unpublish it first")
		second := *d
		second.target += "2"
		if fsType == "block" {
			w.refused("read-only beside writable", second.publish(true), codes.FailedPrecondition, d.id, d.target)
		} else {
			w.ok(second.publish(true))
			second.refusesWrites()
			w.ok(second.unpublish())
		}
		w.ok(d.unpublish())
		w.together("publish read-only", func() error { return d.publish(true) })
		w.refused("writable where it is read-only", d.publish(false), codes.AlreadyExists, d.id, d.target)
		d.refusesWrites()
		d.holds("data")
		d.rest()
		d.use()
		d.write("new")
		d.end()
		w.empty()
	}
}

// TestWriteProtectionOfAnEarlierUser: the kernel leaves a loop device write-protected when it gets another file. A
// volume does not inherit that, and does not pass it on.
func TestWriteProtectionOfAnEarlierUser(t *testing.T) {
	t.Parallel()
	for _, fsType := range []string{"ext4", "block"} {
		w := newPoolDriver(t)
		d := w.create("v", 16*mib, fsType, nil)
		device, err := new(mount.Loops).Attach(d.image(), false)
		w.ok(err)
		w.ok(setReadOnly(device, true))
		d.use()
		d.write("data")
		w.ok(d.unpublish())
		w.ok(d.publish(true))
		// What is open is still this volume's when the flag is read.
		open, err := os.Open(device)
		w.ok(err)
		w.ok(d.unpublish())
		w.refused("unstage while it is open", d.unstage(), codes.FailedPrecondition, "open")
		if is, err := readOnly(device); err != nil || is {
			t.Errorf("%s: the next user gets %s read-only, %v", fsType, device, err)
		}
		w.ok(open.Close())
		w.ok(insist(d.unstage))
		w.ok(d.detach())
		w.ok(w.delete(d.id))
		w.empty()
	}
}

func (d *disk) refusesWrites() {
	d.Helper()
	path := d.target
	if d.fsType != "block" {
		path = filepath.Join(d.target, "data")
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt([]byte("x"), 0)
		_ = f.Close()
	}
	if err == nil {
		d.Errorf("%s can be written to", d.target)
	}
}

// TestLabel: a label with commas in it is one option of the mount, as the driver's seLinuxMount says; mount(8) leaves
// it out on a host without SELinux.
func TestLabel(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", smallest("ext4"), "ext4", nil)
	w.ok(d.attach())
	w.ok(d.stage("noatime", `context="system_u:object_r:container_file_t:s0:c1,c2"`))
	w.ok(d.publish(false))
	d.write("data")
	d.holds("data")
	d.end()
}

// TestMountOptions: options reach the mount, ones that the kernel does not
// know fail and leave nothing, and "ro" does not prevent the others.
func TestMountOptions(t *testing.T) {
	t.Parallel()
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		w := newPoolDriver(t)
		d := w.create("v", smallest(fsType), fsType, nil)
		d.use()
		d.write("data")
		d.rest()
		w.ok(d.attach())
		before := w.tree()
		w.refused("unknown option", d.stage("no-such-option"), codes.Internal, "no-such-option")
		w.unchanged(before)
		w.ok(d.stage("ro", "noatime"))
		w.ok(d.stage("ro", "noatime"))
		w.ok(d.publish(false))
		w.ok(d.publish(false))
		d.refusesWrites()
		d.holds("data")
		d.end()
		w.empty()
	}
}

// TestOutOfOrder: what comes too early is refused, and changes nothing.
func TestOutOfOrder(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	for _, fsType := range []string{"ext4", "block"} {
		d := w.create("v", 16*mib, fsType, nil)
		w.refused("stage before publish", d.stage(), codes.FailedPrecondition, d.id, "publish it there first")
		w.ok(d.attach())
		w.refused("publish before stage", d.publish(false), codes.FailedPrecondition, d.id, "stage it first")
		w.refused("delete while published", w.delete(d.id), codes.FailedPrecondition, d.id, "unpublish it there first")
		w.ok(d.stage())
		w.ok(d.publish(false))
		d.write("data")
		w.ok(d.unstage())
		w.ok(d.detach())
		w.refused("delete while shown", w.delete(d.id), codes.FailedPrecondition, d.id, d.target, "unmount it there first")
		d.holds("data")
		w.ok(d.unpublish())
		w.ok(w.delete(d.id))
	}
	w.empty()
}

// TestOpenDevice: a raw device that a process still has open is not given back
// unseen; what another node does to it then would be done to both. The same node
// gets it again.
func TestOpenDevice(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 16*mib, "block", nil)
	d.use()
	w.ok(d.unpublish())
	device := w.oneDevice()
	f, err := os.Open(device)
	w.ok(err)
	this := fmt.Sprintf("process %d (local.test; an open file) still has %s open; end that first", os.Getpid(), device)
	w.refused("unstage", d.unstage(), codes.FailedPrecondition, d.id, this)
	w.ok(d.stage())
	w.ok(d.publish(false))
	d.write("data")
	w.ok(d.unpublish())
	w.refused("second unstage", d.unstage(), codes.FailedPrecondition, d.id, this)
	w.ok(d.detach())
	w.refused("delete", w.delete(d.id), codes.FailedPrecondition, d.id, this)
	w.ok(f.Close())
	eventually(t, "unstage", func() bool { return d.unstage() == nil })
	d.use()
	d.holds("data")
	w.ok(d.unpublish())
	device = w.oneDevice()
	out, err := exec.Command("losetup", "--find", "--show", "--read-only", device).Output()
	w.ok(err)
	above := strings.TrimSpace(string(out))
	w.refused("unstage what the kernel has open", d.unstage(), codes.FailedPrecondition, d.id,
		fmt.Sprintf("loop device %s still has %s open; end that first", above, device))
	w.ok(exec.Command("losetup", "--detach", above).Run())
	eventually(t, "unstage", func() bool { return d.unstage() == nil })
	w.ok(d.detach())
	w.ok(w.delete(d.id))
	w.empty()
}

// TestHeldVolume: an operation that finds another one at work comes again.
func TestHeldVolume(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 16*mib, "block", nil)
	p := &pool{dir: w.pool}
	_, release, err := p.hold(t.Context(), volumes, d.id, unix.LOCK_EX, holdLimit)
	w.ok(err)
	_, _, err = p.hold(t.Context(), volumes, d.id, unix.LOCK_EX, 0)
	w.refused("hold twice", failure(err), codes.Aborted, d.id, "try again")
	w.ok(d.attach())
	w.ok(d.detach()) // the fence does not wait for locks
	release()
	w.ok(w.delete(d.id))
	w.empty()
}
