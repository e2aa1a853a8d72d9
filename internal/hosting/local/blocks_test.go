package local

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/testkit"
)

// newPoolDriverOn serves a driver whose pool is on a filesystem of its own until the test ends.
func newPoolDriverOn(t *testing.T, fsType string) *poolDriver {
	t.Helper()
	dir := newDir(t)
	image, at := filepath.Join(dir, "pool.img"), filepath.Join(dir, "fs")
	w := &poolDriver{T: t, dir: dir, pool: filepath.Join(at, "pool")}
	w.ok(os.WriteFile(image, nil, 0o600))
	w.ok(os.Truncate(image, 512*mib))
	w.ok(os.Mkdir(at, 0o700))
	force := map[string]string{"ext4": "-F", "xfs": "-f", "btrfs": "-f"}
	w.ok(exec.Command("mkfs."+fsType, "-q", force[fsType], image).Run())
	w.ok(exec.Command("mount", "-o", "loop", image, at).Run())
	t.Cleanup(func() { testkit.Unmount(t, at) })
	w.start()
	return w
}

// put writes a word at an offset of a volume.
func (d *disk) put(word string, at, length int64) {
	d.Helper()
	f, err := os.OpenFile(filepath.Join(d.pool, string(volumes), d.id, imageFile), os.O_WRONLY, 0)
	d.ok(err)
	defer f.Close()
	_, err = f.WriteAt(bytes.Repeat([]byte(word), int(length)/len(word)), at)
	d.ok(err)
	d.ok(f.Sync())
}

// stream is a stream of blocks.
type stream[A csi.BlockAnswer] interface{ Recv() (A, error) }

// blocksFrom reads a stream to its end, and returns its blocks in KiB.
func blocksFrom[A csi.BlockAnswer, S stream[A]](w *poolDriver, from int64, most int32, s S, err error) string {
	w.Helper()
	w.ok(err)
	order := csi.NewBlockOrder(from, most)
	var out []string
	for {
		a, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return strings.Join(out, " ")
		}
		w.ok(err)
		if problem := order.Problem(a); problem != "" {
			w.Error(problem)
		}
		for _, b := range a.GetBlockMetadata() {
			out = append(out, fmt.Sprintf("%d+%d", b.GetByteOffset()>>10, b.GetSizeBytes()>>10))
		}
	}
}

func (w *poolDriver) data(id string, from int64, most int32) string {
	w.Helper()
	s, err := w.m.GetMetadataAllocated(w.Context(), &csipb.GetMetadataAllocatedRequest{
		SnapshotId: id, StartingOffset: from, MaxResults: most,
	})
	return blocksFrom(w, from, most, s, err)
}

func (w *poolDriver) delta(base, target string, from int64, most int32) string {
	w.Helper()
	s, err := w.m.GetMetadataDelta(w.Context(), &csipb.GetMetadataDeltaRequest{
		BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: from, MaxResults: most,
	})
	return blocksFrom(w, from, most, s, err)
}

// TestBlocks: what was written to a volume is allocated in its snapshots, and where the pool's filesystem shares
// blocks, what was written, discarded or added between two snapshots has changed.
func TestBlocks(t *testing.T) {
	t.Parallel()
	for _, fsType := range []string{"xfs", "btrfs", "ext4"} {
		t.Run(fsType, func(t *testing.T) {
			w := newPoolDriverOn(t, fsType)
			v := w.create("v", 64*mib, "block", nil)
			empty := w.snapshot("empty", v.id)
			v.put("one.", 4*mib, mib)
			v.put("two.", 8*mib, 64<<10)
			first := w.snapshot("first", v.id)
			v.put("new.", 4*mib+256<<10, 128<<10)
			v.put("end.", 63*mib, mib)
			w.ok(punch(filepath.Join(w.pool, string(volumes), v.id, imageFile), 8*mib, 64<<10))
			second := w.snapshot("second", v.id)

			for _, c := range []struct {
				of   string
				from int64
				most int32
				want string
			}{
				{empty, 0, 0, ""},
				{first, 0, 0, "4096+1024 8192+64"},
				{first, 0, 1, "4096+1024 8192+64"},
				{first, 4*mib + 512<<10, 0, "4608+512 8192+64"},
				{first, 64 * mib, 0, ""},
				{second, 0, 0, "4096+1024 64512+1024"},
			} {
				if got := w.data(c.of, c.from, c.most); got != c.want {
					t.Errorf("allocated in %s from %d: %s, want %s", c.of, c.from, got, c.want)
				}
			}
			if fsType == "ext4" {
				s, err := w.m.GetMetadataDelta(w.Context(), &csipb.GetMetadataDeltaRequest{
					BaseSnapshotId: first, TargetSnapshotId: second,
				})
				w.ok(err)
				_, err = s.Recv()
				w.refused("a pool that copies", err, codes.FailedPrecondition, "does not share blocks", "read all")
				return
			}
			for _, c := range []struct {
				base, target string
				from         int64
				most         int32
				want         string
			}{
				{empty, first, 0, 0, "4096+1024 8192+64"},
				{first, second, 0, 0, "4352+128 8192+64 64512+1024"},
				{first, second, 0, 1, "4352+128 8192+64 64512+1024"},
				{first, second, 8*mib + 32<<10, 0, "8224+32 64512+1024"},
				{second, second, 0, 0, ""},
			} {
				if got := w.delta(c.base, c.target, c.from, c.most); got != c.want {
					t.Errorf("changed from %s to %s at %d: %s, want %s", c.base, c.target, c.from, got, c.want)
				}
			}
			w.refuseBlocks(v, first)
		})
	}
}

// refuseBlocks makes requests that must be refused.
func (w *poolDriver) refuseBlocks(v *disk, snapshot string) {
	w.Helper()
	other := w.create("other", 16*mib, "block", nil)
	foreign := w.snapshot("foreign", other.id)
	for what, c := range map[string]struct {
		base, target string
		from         int64
		most         int32
		code         codes.Code
	}{
		"no base":            {"", snapshot, 0, 0, codes.InvalidArgument},
		"no target":          {snapshot, "", 0, 0, codes.InvalidArgument},
		"a volume":           {v.id, snapshot, 0, 0, codes.NotFound},
		"a way out":          {"snap-../x", snapshot, 0, 0, codes.NotFound},
		"of another volume":  {foreign, snapshot, 0, 0, codes.InvalidArgument},
		"beyond the volume":  {snapshot, snapshot, 64*mib + 1, 0, codes.OutOfRange},
		"before the volume":  {snapshot, snapshot, -1, 0, codes.InvalidArgument},
		"fewer than nothing": {snapshot, snapshot, 0, -1, codes.InvalidArgument},
	} {
		s, err := w.m.GetMetadataDelta(w.Context(), &csipb.GetMetadataDeltaRequest{
			BaseSnapshotId: c.base, TargetSnapshotId: c.target, StartingOffset: c.from, MaxResults: c.most,
		})
		w.ok(err)
		_, err = s.Recv()
		w.refused(what, err, c.code)
	}
}

// TestManyExtents: a file with more extents than are asked for at a time is compared whole.
func TestManyExtents(t *testing.T) {
	t.Parallel()
	w := newPoolDriverOn(t, "xfs")
	v := w.create("v", 64*mib, "block", nil)
	for i := range int64(2*extentsAtOnce + 10) {
		v.put("x", i*64<<10, 4<<10)
	}
	base := w.snapshot("base", v.id)
	changed := int64(2*extentsAtOnce + 5)
	v.put("y", changed*64<<10, 4<<10)
	target := w.snapshot("target", v.id)
	if got := strings.Count(w.data(target, 0, 0), "+4"); got != 2*extentsAtOnce+10 {
		t.Errorf("%d blocks are allocated", got)
	}
	if got, want := w.delta(base, target, 0, 0), fmt.Sprintf("%d+4", changed*64); got != want {
		t.Errorf("changed are %s, want %s", got, want)
	}
}

// TestDiffer: pieces that are in one place, or have no data, are the same; where a piece is may be unknown.
func TestDiffer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		a, b []piece
		want string
	}{
		{"nothing but holes", []piece{{0, 100, nowhere}}, []piece{{0, 40, nowhere}, {40, 100, nowhere}}, ""},
		{"one place", []piece{{0, 100, 1000}}, []piece{{0, 30, 1000}, {30, 100, 1030}}, ""},
		{"another place", []piece{{0, 100, 1000}}, []piece{{0, 30, 1000}, {30, 60, 5000}, {60, 100, 1060}}, "30+30"},
		{"written", []piece{{0, 100, nowhere}}, []piece{{0, 10, nowhere}, {10, 20, 7}, {20, 100, nowhere}}, "10+10"},
		{"discarded", []piece{{0, 20, 7}, {20, 100, nowhere}}, []piece{{0, 100, nowhere}}, "0+20"},
		{"a place that is not known", []piece{{0, 100, uncertain}}, []piece{{0, 50, uncertain}, {50, 100, 1}}, "0+50 50+50"},
		{"the same place, moved", []piece{{0, 100, 1000}}, []piece{{0, 100, 1001}}, "0+100"},
	} {
		var got []string
		err := differ(0, 100, given(c.a), given(c.b), func(at, length int64) error {
			got = append(got, fmt.Sprintf("%d+%d", at, length))
			return nil
		})
		if text := strings.Join(got, " "); text != c.want || err != nil {
			t.Errorf("%s: %s, %v, want %s", c.what, text, err, c.want)
		}
	}
}

func given(all []piece) pieces {
	return func() (piece, error) {
		next := all[0]
		all = all[1:]
		return next, nil
	}
}

// punch discards a part of a file.
func punch(path string, at, length int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return errors.Join(unix.Fallocate(int(f.Fd()), mode, at, length), f.Sync())
}
