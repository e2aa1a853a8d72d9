package local

import (
	"os"
	"path/filepath"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// TestDamage: a damaged volume is neither used, recreated nor deleted, no symbolic link
// is followed, and other volumes are not affected.
func TestDamage(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(w *poolDriver, dir, precious string){
		"directory is a link": func(w *poolDriver, dir, precious string) {
			w.ok(os.Rename(dir, precious+"/moved"))
			w.ok(os.Symlink(precious+"/moved", dir))
		},
		"image is a link": func(w *poolDriver, dir, precious string) {
			w.ok(os.Remove(dir + "/disk.img"))
			w.ok(os.Symlink(precious+"/file", dir+"/disk.img"))
		},
		"image is missing": func(w *poolDriver, dir, _ string) { w.ok(os.Remove(dir + "/disk.img")) },
		"image is a pipe": func(w *poolDriver, dir, _ string) {
			w.ok(os.Remove(dir + "/disk.img"))
			w.ok(unix.Mkfifo(dir+"/disk.img", 0o600))
		},
		"record is a link": func(w *poolDriver, dir, precious string) {
			w.ok(os.Rename(dir+"/volume.json", precious+"/moved"))
			w.ok(os.Symlink(precious+"/moved", dir+"/volume.json"))
		},
		"record is missing": func(w *poolDriver, dir, _ string) { w.ok(os.Remove(dir + "/volume.json")) },
		"record is empty":   func(w *poolDriver, dir, _ string) { w.ok(os.Truncate(dir+"/volume.json", 0)) },
		"record is a pipe": func(w *poolDriver, dir, _ string) {
			w.ok(os.Remove(dir + "/volume.json"))
			w.ok(unix.Mkfifo(dir+"/volume.json", 0o600))
		},
		"record of another": func(w *poolDriver, dir, _ string) {
			w.ok(os.WriteFile(dir+"/volume.json", []byte(`{"id":"vol-0"}`), 0o600))
		},
		"node is a link": func(w *poolDriver, dir, precious string) { w.ok(os.Symlink(precious+"/file", dir+"/node")) },
		"only the directory": func(w *poolDriver, dir, _ string) {
			w.ok(os.Remove(dir + "/volume.json"))
			w.ok(os.Remove(dir + "/disk.img"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPoolDriver(t)
			precious := filepath.Join(w.dir, "precious")
			w.ok(os.Mkdir(precious, 0o700))
			w.ok(os.WriteFile(precious+"/file", blob("precious"), 0o600))
			good := w.create("good", 16*mib, "ext4", nil)
			bad := w.create("bad", 16*mib, "ext4", nil)
			dir := filepath.Join(w.pool, "volumes", bad.id)
			damage(w, dir, precious)
			w.disk("hostile", "", "")
			before := w.tree()
			for range 2 {
				_, err := w.c.CreateVolume(t.Context(), request("bad", 16*mib, "ext4"))
				w.refused("CreateVolume", err, codes.Internal, bad.id, "damaged", "nothing was changed", dir)
				w.refused("delete", w.delete(bad.id), codes.Internal, bad.id, "damaged", "nothing was changed", dir)
				calls := w.calls(bad.id)
				delete(calls, "restore") // which is not a call for a volume
				for call, err := range calls {
					w.refused(call, err, codes.Internal, "damaged")
				}
				list, err := w.c.ListVolumes(t.Context(), &csipb.ListVolumesRequest{})
				if err != nil || len(list.GetEntries()) != 2 {
					t.Errorf("list: %v, %v", list, err)
				}
				w.restart()
				w.unchanged(before)
			}
			good.use()
			good.write("good")
			good.end()
			if data, err := os.ReadFile(precious + "/file"); err != nil || string(data) != string(blob("precious")) {
				t.Error("what a link led to is changed")
			}
		})
	}
}

// TestSweepFollowsNoLink: garbage is what this driver has made.
func TestSweepFollowsNoLink(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	precious := filepath.Join(w.dir, "precious")
	w.ok(os.Mkdir(precious, 0o700))
	w.ok(os.WriteFile(precious+"/disk.img", nil, 0o600))
	w.ok(os.Symlink(precious, filepath.Join(w.pool, "volumes", ".new-link")))
	w.ok(os.Mkdir(filepath.Join(w.pool, "volumes", ".new-foreign"), 0o700))
	w.ok(os.WriteFile(filepath.Join(w.pool, "volumes", ".new-foreign", "notes"), nil, 0o600))
	w.disk("v", "", "")
	before := w.tree()
	w.restart()
	w.unchanged(before)
	d := w.create("v", mib, "block", nil)
	w.ok(w.delete(d.id))
	w.unchanged(before)
}
