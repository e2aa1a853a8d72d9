package local

import (
	"maps"
	"os/exec"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// allocated returns how many bytes of a volume's image are on the disk.
func (w *poolDriver) allocated(id string) int64 {
	w.Helper()
	var info unix.Stat_t
	w.ok(unix.Stat((&pool{dir: w.pool}).image(volumes, id), &info))
	return info.Blocks * 512
}

func (w *poolDriver) modify(id string, attributes map[string]string) codes.Code {
	w.Helper()
	_, err := w.c.ControllerModifyVolume(w.Context(), &csipb.ControllerModifyVolumeRequest{
		VolumeId: id, MutableParameters: attributes,
	})
	return status.Code(err)
}

// trim has the filesystem of a volume give back what it does not use.
func (w *poolDriver) trim(d *disk) {
	w.Helper()
	before := w.allocated(d.id)
	out, err := exec.CommandContext(w.Context(), "fstrim", d.target).CombinedOutput()
	if after := w.allocated(d.id); err != nil || after >= before {
		w.Fatalf("fstrim: %v, %s; allocated were %d bytes and are %d", err, out, before, after)
	}
}

// TestPreallocation: a volume gets all of its space, also when it grows or the call is repeated, and its data stays.
func TestPreallocation(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	all, none := map[string]string{"preallocate": "true"}, map[string]string{"preallocate": "false"}
	d := w.create("sparse", 32*mib, "ext4", nil)
	d.use()
	d.write("data")
	if has := w.allocated(d.id); has > 16*mib {
		t.Fatalf("a sparse volume takes %d bytes", has)
	}
	for range 2 {
		if code := w.modify(d.id, all); code != codes.OK || w.allocated(d.id) < 32*mib {
			t.Errorf("%s, allocated are %d bytes", code, w.allocated(d.id))
		}
	}
	d.holds("data")
	_, err := w.c.ControllerExpandVolume(t.Context(), &csipb.ControllerExpandVolumeRequest{
		VolumeId: d.id, CapacityRange: &csipb.CapacityRange{RequiredBytes: 48 * mib},
	})
	if w.ok(err); w.allocated(d.id) < 48*mib {
		t.Errorf("of a volume that has grown %d bytes are allocated", w.allocated(d.id))
	}
	if code := w.modify(d.id, none); code != codes.OK || w.allocated(d.id) < 48*mib {
		t.Errorf("%s; what a volume has it keeps: %d bytes", code, w.allocated(d.id))
	}
	d.holds("data")
	w.trim(d)
	if code := w.modify(d.id, all); code != codes.OK || w.allocated(d.id) < 48*mib {
		t.Errorf("%s; what was given back is not taken again: %d bytes", code, w.allocated(d.id))
	}
	d.rest()
	d.use()
	w.trim(d)
	d.rest()
	if d.use(); w.allocated(d.id) < 48*mib {
		t.Errorf("what was given back is not taken again by the next stage: %d bytes", w.allocated(d.id))
	}
	d.holds("data")
	d.rest()

	made, err := w.c.CreateVolume(t.Context(), &csipb.CreateVolumeRequest{
		Name: "full", VolumeCapabilities: []*csipb.VolumeCapability{capability("ext4")},
		CapacityRange:     &csipb.CapacityRange{RequiredBytes: 32 * mib},
		MutableParameters: all,
	})
	if w.ok(err); w.allocated(made.GetVolume().GetVolumeId()) < 32*mib {
		t.Error("a volume is made without its space")
	}
}

// TestPreallocationIsRefused: what cannot be is said, and leaves the volume as it is.
func TestPreallocationIsRefused(t *testing.T) {
	t.Parallel()
	w := newKeptPool(t, 16*mib)
	d := w.create("d", 60*mib, "block", nil)
	all := map[string]string{"preallocate": "true"}
	for _, c := range []struct {
		argues string
		id     string
		more   map[string]string
		want   codes.Code
	}{
		{"there is less room, but for what is kept for others", d.id, nil, codes.ResourceExhausted},
		{"an attribute that is not known", d.id, map[string]string{"iops": "7"}, codes.InvalidArgument},
		{"a value that is none", d.id, map[string]string{"preallocate": "maybe"}, codes.InvalidArgument},
		{"no such volume", volumes.idOf("other"), nil, codes.NotFound},
		{"no volume", "", nil, codes.InvalidArgument},
	} {
		attributes := maps.Clone(all)
		maps.Copy(attributes, c.more)
		if got := w.modify(c.id, attributes); got != c.want || w.allocated(d.id) > 16*mib {
			t.Errorf("%s: %s, want %s; allocated are %d bytes", c.argues, got, c.want, w.allocated(d.id))
		}
	}
	if got := w.modify(d.id, nil); got != codes.OK {
		t.Errorf("without attributes: %s", got)
	}
}
