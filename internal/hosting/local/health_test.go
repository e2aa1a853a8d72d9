package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/mount"
)

// health returns what the driver reports about the volume, in one line.
func (d *disk) health() string {
	d.Helper()
	r, err := d.n.NodeGetVolumeHealth(d.Context(), &csipb.NodeGetVolumeHealthRequest{
		VolumeId: d.id, VolumePublishPath: d.target, StagingTargetPath: d.staging,
	})
	d.ok(err)
	var out []string
	for _, e := range r.GetVolumeHealth().GetHealthStatuses() {
		out = append(out, e.GetStatus().String()+" "+e.GetReason()+": "+e.GetMessage())
	}
	if r.GetVolumeHealth().GetVolumeId() != d.id {
		d.Errorf("told of volume %q", r.GetVolumeHealth().GetVolumeId())
	}
	return strings.Join(out, "; ")
}

func (d *disk) healthIs(what, want string) {
	d.Helper()
	if got := d.health(); (want == "") != (got == "") || !strings.Contains(got, want) {
		d.Errorf("%s: health %q, wanted %q", what, got, want)
	}
}

// TestVolumeHealth: a volume whose image is gone is reported as unhealthy, mounted or not, and is healthy again when
// the image is back.
func TestVolumeHealth(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", smallest("ext4"), "ext4", nil)
	image := filepath.Join(w.pool, "volumes", d.id, "disk.img")
	d.healthIs("not mounted", "")
	d.use()
	d.healthIs("mounted", "")
	w.ok(os.Rename(image, image+".away"))
	d.healthIs("image is gone", "DEGRADED VolumeDamaged: files of the volume are damaged or gone in "+
		filepath.Dir(image)+": ")
	w.ok(os.Rename(image+".away", image))
	d.healthIs("image is back", "")
	d.rest()
	w.ok(os.Rename(image, image+".away"))
	d.healthIs("image is gone, not mounted", "INACCESSIBLE VolumeDamaged: ")
	w.ok(os.Rename(image+".away", image))
	w.ok(w.delete(d.id))
	_, err := d.n.NodeGetVolumeHealth(w.Context(), &csipb.NodeGetVolumeHealthRequest{VolumeId: d.id})
	w.refused("deleted", err, codes.NotFound)
	_, err = d.n.NodeGetVolumeHealth(w.Context(), &csipb.NodeGetVolumeHealthRequest{})
	w.refused("no id", err, codes.InvalidArgument)
}

// TestFilesystemErrors: an error that the kernel has found in the filesystem is reported until it is repaired.
func TestFilesystemErrors(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", smallest("ext4"), "ext4", nil)
	d.use()
	at, _, err := mount.At(d.staging)
	w.ok(err)
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(at.Source), "trigger_fs_error")
	w.ok(os.WriteFile(trigger, []byte("test"), 0o200))
	// The kernel counts it a little later.
	eventually(t, "the error is told", func() bool {
		return strings.Contains(d.health(), "DEGRADED FilesystemErrors: the kernel has found errors in the filesystem")
	})
	d.rest()
	d.use()
	d.healthIs("repaired", "")
	d.end()
}

// TestStorageHealth: a pool that is gone, or was replaced by another one, is reported.
func TestStorageHealth(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	want := func(what, want string) {
		t.Helper()
		r, err := w.n.NodeGetStorageHealth(t.Context(), &csipb.NodeGetStorageHealthRequest{})
		w.ok(err)
		got := ""
		for _, e := range r.GetBackendHealth() {
			got += e.GetStatus().String() + " " + e.GetReason() + ": " + e.GetMessage()
		}
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: health %q, wanted %q", what, got, want)
		}
	}
	want("well", "")
	w.ok(os.Rename(w.pool, w.pool+".away"))
	want("gone", "STORAGE_UNREACHABLE PoolUnreadable: ")
	w.ok(os.MkdirAll(w.pool, 0o700))
	w.ok(os.WriteFile(filepath.Join(w.pool, "pool.json"), []byte(`{"id":"other"}`), 0o600))
	want("another", "STORAGE_UNREACHABLE PoolReplaced: another pool is at "+w.pool)
	w.ok(os.RemoveAll(w.pool))
	w.ok(os.Rename(w.pool+".away", w.pool))
	want("back", "")
}
