package local

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

func TestSuite(t *testing.T) {
	t.Parallel()
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			csitest.Suite(t, func(t *testing.T) csitest.Target {
				w := newPoolDriver(t)
				t.Cleanup(w.empty)
				return csitest.Target{
					Socket: filepath.Join(w.dir, "csi.sock"), Dir: w.dir, FSType: fsType, Block: true, Bytes: smallest(fsType),
				}
			})
		})
	}
}

func smallest(fsType string) int64 {
	return map[string]int64{"ext4": 32 * mib, "xfs": 320 * mib, "btrfs": 256 * mib, "block": 16 * mib}[fsType]
}

func kinds() []string { return []string{"ext4", "xfs", "btrfs", "block"} }

// TestCopies: a snapshot keeps the earlier content, a clone has the present content, and
// all can be used at the same time on one host.
func TestCopies(t *testing.T) {
	t.Parallel()
	for _, fsType := range kinds() {
		t.Run(fsType, func(t *testing.T) {
			w := newPoolDriver(t)
			size := smallest(fsType)
			original := w.create("original", size, fsType, nil)
			original.use()
			original.write("old")
			snapshot := w.snapshot("snapshot", original.id)
			original.write("new")
			clone := w.create("clone", size, fsType, fromVolume(original.id))
			restored := w.create("restored", 2*size, fsType, fromSnapshot(snapshot))
			clone.use()
			restored.use()
			original.holds("new")
			clone.holds("new")
			restored.holds("old")
			if got := restored.size(); got < size+size/2 {
				t.Errorf("the restored volume has %d bytes, want about %d", got, 2*size)
			}
			if fsType == "btrfs" && w.btrfsID(original.id) == w.btrfsID(clone.id) {
				t.Error("two filesystems have one identity, which Linux before 6.7 does not mount")
			}
			clone.write("clone's own")
			original.holds("new")
			restored.holds("old")
			// Each once more from the disk.
			for d, word := range map[*disk]string{original: "new", clone: "clone's own", restored: "old"} {
				d.rest()
				d.use()
				d.holds(word)
			}
			for _, d := range []*disk{original, clone, restored} {
				d.rest()
			}
			for _, id := range []string{original.id, snapshot, clone.id, restored.id} {
				w.ok(w.delete(id))
			}
			w.empty()
		})
	}
}

// btrfsID reads the identity of the filesystem, in its superblock at 64 KiB.
func (w *poolDriver) btrfsID(id string) string {
	w.Helper()
	f, err := os.Open(filepath.Join(w.pool, "volumes", id, "disk.img"))
	w.ok(err)
	defer f.Close()
	var b [16]byte
	_, err = f.ReadAt(b[:], 64<<10+0x20)
	w.ok(err)
	return string(b[:])
}

// TestCopyOfOpenDevice: what was written to a raw device is in a copy, even if no process
// has synced it yet.
func TestCopyOfOpenDevice(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 16*mib, "block", nil)
	d.use()
	f, err := os.OpenFile(d.target, os.O_WRONLY, 0)
	w.ok(err)
	_, err = f.WriteAt(blob("data"), 0)
	w.ok(err)
	clone := w.create("clone", 16*mib, "block", fromVolume(d.id))
	w.ok(f.Close())
	clone.use()
	clone.holds("data")
	for _, c := range []*disk{clone, d} {
		c.end()
	}
	w.empty()
}

// TestCopyOfResting: what is not mounted is copied as well, and so is a volume
// that was never used, which is blank then.
func TestCopyOfResting(t *testing.T) {
	t.Parallel()
	for _, fsType := range kinds() {
		t.Run(fsType, func(t *testing.T) {
			w := newPoolDriver(t)
			original := w.create("original", smallest(fsType), fsType, nil)
			blank := w.create("blank", smallest(fsType), fsType, fromVolume(original.id))
			blank.use()
			blank.write("blank's own")
			original.use()
			original.write("data")
			original.rest()
			clone := w.create("clone", smallest(fsType), fsType, fromVolume(original.id))
			clone.use()
			clone.holds("data")
			for _, d := range []*disk{clone, blank} {
				d.end()
			}
			w.ok(w.delete(original.id))
			w.empty()
		})
	}
}

// TestCopySizes: larger than the source is well, smaller is not.
func TestCopySizes(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	original := w.create("original", 64*mib, "ext4", nil)
	snapshot := w.snapshot("snapshot", original.id)
	for name, source := range map[string]*csipb.VolumeContentSource{
		"volume": fromVolume(original.id), "snapshot": fromSnapshot(snapshot),
	} {
		r := request(name, 32*mib, "ext4")
		r.VolumeContentSource = source
		_, err := w.c.CreateVolume(t.Context(), r)
		w.refused("smaller than the "+name, err, codes.OutOfRange, "67108864", "ask for")
		r.CapacityRange = &csipb.CapacityRange{LimitBytes: 48 * mib}
		_, err = w.c.CreateVolume(t.Context(), r)
		w.refused("limit below the "+name, err, codes.OutOfRange, "limit")
		r.CapacityRange = &csipb.CapacityRange{RequiredBytes: 64*mib + 1}
		made, err := w.c.CreateVolume(t.Context(), r)
		w.ok(err)
		if got := made.GetVolume().GetCapacityBytes(); got != 65*mib {
			t.Errorf("a little larger than the %s: %d bytes", name, got)
		}
		w.ok(w.delete(made.GetVolume().GetVolumeId()))
	}
	w.ok(w.delete(snapshot))
	w.ok(w.delete(original.id))
	w.empty()
}

// TestDeleteInAnyOrder: copies share nothing that one could lose.
func TestDeleteInAnyOrder(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}, {2, 3, 0, 1}, {0, 2, 1, 3}} {
		original := w.create("original", 32*mib, "block", nil)
		original.use()
		original.write("data")
		original.rest()
		snapshot := w.snapshot("snapshot", original.id)
		clone := w.create("clone", 32*mib, "block", fromVolume(original.id))
		restored := w.create("restored", 32*mib, "block", fromSnapshot(snapshot))
		all := []string{original.id, snapshot, clone.id, restored.id}
		for i, at := range order {
			w.ok(w.delete(all[at]))
			for _, d := range []*disk{original, clone, restored} {
				if !slices.Contains(order[:i+1], slices.Index(all, d.id)) {
					d.use()
					d.holds("data")
					d.rest()
				}
			}
		}
		w.empty()
	}
}

// TestAnswerOutlivesSource: a call whose answer was lost can be repeated although the
// source of the new volume is gone. NotFound would mean that nothing was created, and the
// volume would leak.
func TestAnswerOutlivesSource(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	original := w.create("original", 32*mib, "block", nil)
	snapshot := w.snapshot("snapshot", original.id)
	clone := w.create("clone", 32*mib, "block", fromVolume(original.id))
	restored := w.create("restored", 32*mib, "block", fromSnapshot(snapshot))
	w.ok(w.delete(original.id))
	if again := w.snapshot("snapshot", original.id); again != snapshot {
		t.Errorf("snapshot %s, then %s", snapshot, again)
	}
	w.ok(w.delete(snapshot))
	if again := w.create("clone", 32*mib, "block", fromVolume(original.id)); again.id != clone.id {
		t.Errorf("clone %s, then %s", clone.id, again.id)
	}
	if again := w.create("restored", 32*mib, "block", fromSnapshot(snapshot)); again.id != restored.id {
		t.Errorf("restored %s, then %s", restored.id, again.id)
	}
	r := request("clone", 32*mib, "block")
	_, err := w.c.CreateVolume(t.Context(), r)
	w.refused("the name of a clone for an empty volume", err, codes.AlreadyExists, clone.id, original.id)
	r.VolumeContentSource = fromVolume(restored.id)
	_, err = w.c.CreateVolume(t.Context(), r)
	w.refused("the name of a clone for another source", err, codes.AlreadyExists, clone.id)
	w.ok(w.delete(clone.id))
	w.ok(w.delete(restored.id))
	w.empty()
}

// TestPlaceOfASnapshot: a snapshot can be used in the pool of its volume, and is taken in no other one.
func TestPlaceOfASnapshot(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	v, err := w.c.CreateVolume(t.Context(), request("original", 32*mib, "block"))
	w.ok(err)
	here := v.GetVolume().GetAccessibleTopology()[0]
	r := &csipb.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: v.GetVolume().GetVolumeId()}
	r.AccessibilityRequirements = &csipb.TopologyRequirement{
		Requisite: []*csipb.Topology{{Segments: map[string]string{volume.TopologyPool: "another"}}},
	}
	_, err = w.c.CreateSnapshot(t.Context(), r)
	w.refused("another pool", err, codes.ResourceExhausted, "pool")
	r.AccessibilityRequirements.Requisite = append(r.AccessibilityRequirements.Requisite, here)
	taken, err := w.c.CreateSnapshot(t.Context(), r)
	w.ok(err)
	if got := taken.GetSnapshot().GetAccessibleTopology(); len(got) != 1 || !proto.Equal(got[0], here) {
		t.Errorf("the snapshot is in %v, want %v", got, here)
	}
}

// TestDataIsNeverFormatted: what holds data without a filesystem that is known
// was a raw volume, or is one whose beginning was destroyed.
func TestDataIsNeverFormatted(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("raw", 32*mib, "block", nil)
	d.use()
	d.write("data of a raw volume")
	d.rest()
	d.fsType = "ext4"
	w.ok(d.attach())
	w.refused("stage raw data", d.stage(), codes.FailedPrecondition, d.id, "never formatted", "raw block")
	w.ok(d.detach())
	d.fsType = "block"
	d.use()
	d.holds("data of a raw volume")
	d.end()

	d = w.create("xfs", 320*mib, "xfs", nil)
	d.use()
	d.write("data")
	d.rest()
	d.fsType = "ext4"
	w.ok(d.attach())
	w.refused("stage xfs as ext4", d.stage(), codes.FailedPrecondition, "xfs", "ext4", "never formatted")
	if _, err := os.Stat(d.staging); err != nil {
		t.Error("a staging directory that was there is gone")
	}
	d.fsType = "xfs"
	d.use()
	d.holds("data")
	d.end()
	w.empty()
}
