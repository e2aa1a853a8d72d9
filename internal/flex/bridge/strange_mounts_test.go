package bridge

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
)

// TestMadeAnew: an object that was deleted and recreated under the same name stands for
// other data. What remains of the first is not mistaken for the second.
func TestMadeAnew(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	d := w.run(lofs)[0]
	old := w.volume(d, "pv-1", map[string]string{"file": "old", "size": "32Mi"})
	old.forward()
	anew := w.volume(d, "pv-1", map[string]string{"file": "new", "size": "32Mi"})
	w.refused("attach", anew.attach(), codes.AlreadyExists, "another way")
	w.refused("stage", anew.stage(), codes.AlreadyExists, "another way")
	anew.staging = filepath.Join(w.dir, "globalmount-other")
	w.refused("stage at another path", anew.stage(), codes.AlreadyExists, "another way")
	w.refused("publish", anew.publish(), codes.AlreadyExists, "another way")
	old.back()
	anew.forward()
	anew.back()
	w.empty()
}

// TestStrangers: what is mounted in a private directory, and stands in no
// record, does not pass for the volume.
func TestStrangers(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	w.install("scratch")
	drivers := w.run(lofs, scratch)
	old := w.volume(drivers[0], "pv-1", map[string]string{"file": "old", "size": "32Mi"})
	pod := w.volume(drivers[1], "pv-2", nil)
	old.forward()
	w.ok(pod.publish())
	w.ok(os.WriteFile(filepath.Join(old.target, "whose"), []byte("old"), 0o600))
	w.ok(os.WriteFile(filepath.Join(pod.target, "whose"), []byte("old"), 0o600))
	w.stop()
	w.ok(os.RemoveAll(filepath.Join(w.root, "state/volumes")))
	drivers = w.run(lofs, scratch)
	old.d, pod.d = drivers[0], drivers[1]
	w.refused("detach what is mounted", old.detach(), codes.FailedPrecondition, "mounted")
	anew := w.volume(old.d, "pv-1", map[string]string{"file": "new", "size": "32Mi"})
	anew.target = filepath.Join(w.dir, "pods/uid-2/volumes/kubernetes.io~csi/pv-1/mount")
	w.ok(os.MkdirAll(filepath.Dir(anew.target), 0o750))
	anew.forward()
	if _, err := os.Stat(filepath.Join(anew.target, "whose")); err == nil {
		t.Error("the old volume is shown as the new one")
	}
	w.ok(anew.unpublish())
	w.ok(old.unpublish())
	w.ok(anew.unstage())
	w.ok(anew.detach())
	// Only the mount at the target was removed.
	w.ok(unmount(pod.target))
	w.ok(pod.publish())
	if _, err := os.Stat(filepath.Join(pod.target, "whose")); err == nil {
		t.Error("what somebody mounted long ago is shown as a new volume")
	}
	w.ok(pod.unpublish())
	// The driver was not called to detach the old one.
	w.ok(mount.LoopDetach(filepath.Join(w.dir, "pool/old.img")))
	w.ok(os.RemoveAll(filepath.Join(w.dir, "pool/attached/old")))
	w.empty()
}

// TestInlineRecordIsLost: the device of a volume that a Pod itself names belongs to that
// volume alone, so it is detached even if its record is lost.
func TestInlineRecordIsLost(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	v := w.inline(w.run(lofs)[0], "1", map[string]string{"file": "a", "size": "32Mi"})
	w.ok(v.publish())
	w.stop()
	w.ok(os.RemoveAll(filepath.Join(w.root, "state/volumes")))
	v.d = w.run(lofs)[0]
	w.ok(v.unpublish())
	w.empty()
}

// TestHalfPublished: what is mounted for a Pod privately keeps the device, too.
func TestHalfPublished(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	v := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
	v.forward()
	w.ok(unmount(v.target))
	w.refused("unstage", v.unstage(), codes.FailedPrecondition, "unpublish")
	v.back()
	w.empty()
}

func unmount(path string) error { return unix.Unmount(path, unix.UMOUNT_NOFOLLOW) }

// TestInlineNoLongerAttaches: what was attached by an attempt whose end was not observed
// is detached, even if the driver no longer attaches.
func TestInlineNoLongerAttaches(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	v := w.inline(w.run(lofs)[0], "1", map[string]string{"file": "a", "size": "32Mi"})
	w.on("mountdevice", `trap - EXIT; kill -9 $$`)
	w.refused("publish", v.publish(), codes.Aborted)
	if !w.attachedTo("a") {
		t.Fatal("it was not attached")
	}
	w.on("init", `answer '{"status":"Success","capabilities":{"attach":false}}'; exit 0`)
	w.on("mount", `mkdir -p "$2" && mount -t tmpfs flip "$2" && answer '{"status":"Success"}'; exit 0`)
	w.on("unmount", `while [ -n "$(mounted "$2")" ]; do umount "$2"; done; answer '{"status":"Success"}'; exit 0`)
	w.install("lofs")
	name := decide.Name{Vendor: "example.com", Driver: "lofs"}
	w.eventually(func() error {
		now, err := w.bridge.Host.Get(name)
		if err == nil && now.Capabilities.Attach {
			err = errors.New("it attaches still")
		}
		return err
	})
	w.eventually(func() error {
		v.d = w.dial(lofs)
		return v.publish()
	})
	// The driver's socket is recreated in the meantime.
	w.eventually(v.unpublish)
	if w.attachedTo("a") {
		t.Error("it is attached for ever")
	}
	w.empty()
}

// TestRootOfOthers: records that others can write would have anything unmounted,
// and kept drivers of others would be started.
func TestRootOfOthers(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	for what, change := range map[string]func() error{
		"owner": func() error { return os.Chown(w.root, 12345, 0) },
		"mode":  func() error { return os.Chmod(w.root, 0o777) },
		"link": func() error {
			return errors.Join(os.RemoveAll(w.root), os.Symlink(filepath.Join(w.dir, "pool"), w.root))
		},
	} {
		w.ok(os.RemoveAll(w.root))
		w.ok(os.Mkdir(w.root, 0o700))
		w.ok(change())
		if b, err := Open(Options{RootDir: w.root}); err == nil {
			t.Errorf("%s: opened", what)
			w.ok(b.Close())
		}
	}
	w.ok(os.RemoveAll(w.root))
}

// TestMadeByMany: many concurrent requests for one volume create one, completely.
func TestMadeByMany(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	w.run(scratch)
	name := decide.Name{Vendor: "example.com", Driver: "scratch"}
	d := &driver{b: w.bridge, name: name, csi: scratch, ability: ability{provision: true}}
	v := w.volume(nil, "pv-1", nil)
	var asked sync.WaitGroup
	for range 100 {
		asked.Go(func() {
			_, err := d.CreateVolume(t.Context(), &csipb.CreateVolumeRequest{
				Name: v.id, VolumeCapabilities: []*csipb.VolumeCapability{v.capability()},
				Parameters: map[string]string{"size": "4Mi"},
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	asked.Wait()
	w.stop()
	w.run(scratch)
	if w.bridge.records.get(name, made, v.id, "") == nil {
		t.Error("its record is not there")
	}
	d.b = w.bridge
	_, err := d.DeleteVolume(t.Context(), &csipb.DeleteVolumeRequest{VolumeId: v.id})
	w.ok(err)
	w.empty()
}

// TestSameDirectoryAtOnce: of two volumes that would have one private directory
// one gets it, and neither shows the other's data.
func TestSameDirectoryAtOnce(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	d := w.run(scratch)[0]
	both := []*volumeOf{
		w.volume(d, "pv-1", map[string]string{"share": "one"}), w.volume(d, "pv-2", map[string]string{"share": "two"}),
	}
	w.on("mount", `sleep 0.1`)
	for i, v := range both {
		v.target = filepath.Join(w.dir, string(rune('a'+i)), "pods/uid-1/volumes/kubernetes.io~csi/data/mount")
		w.ok(os.MkdirAll(filepath.Dir(v.target), 0o750))
	}
	var wait sync.WaitGroup
	errs := make([]error, 2)
	for i, v := range both {
		wait.Go(func() { errs[i] = v.publish() })
	}
	wait.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Error(errs)
	}
	for i, v := range both {
		if errs[i] == nil {
			w.ok(v.unpublish())
		} else {
			w.refused("the other", errs[i], codes.FailedPrecondition, "same Pod")
		}
	}
	w.empty()
}

// TestUnpublishOfAnother: a call that names another volume than the one at the target
// unmounts nothing.
func TestUnpublishOfAnother(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	d := w.run(scratch)[0]
	v, other := w.volume(d, "pv-1", nil), w.volume(d, "pv-2", nil)
	w.ok(v.publish())
	w.ok(os.WriteFile(filepath.Join(v.target, "file"), nil, 0o600))
	other.target = v.target
	w.refused("unpublish", other.unpublish(), codes.FailedPrecondition, "pv-1")
	if _, err := os.Stat(filepath.Join(v.target, "file")); err != nil {
		t.Error(err)
	}
	w.ok(v.unpublish())
	w.ok(other.unpublish())
	w.empty()
}

// TestFullDisk: a step that cannot be recorded is not done, and what exists is removed
// when the disk has space again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	w.ok(os.Mkdir(w.root, 0o700))
	w.ok(unix.Mount("small", w.root, "tmpfs", 0, "size=256k,mode=0700"))
	d := w.run(lofs)[0]
	defer func() {
		w.stop()
		w.ok(unmount(w.root))
	}()
	there := w.volume(d, "pv-1", map[string]string{"file": "there", "size": "32Mi"})
	coming := w.volume(d, "pv-2", map[string]string{"file": "coming", "size": "32Mi"})
	inline := w.inline(d, "1", map[string]string{"file": "inline", "size": "32Mi"})
	there.forward()
	w.ok(coming.attach())
	fill := filepath.Join(w.root, "fill")
	w.called()
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	w.refused("stage", coming.stage(), codes.ResourceExhausted, "no space")
	w.refused("publish inline", inline.publish(), codes.ResourceExhausted, "no space")
	w.refused("unpublish", there.unpublish(), codes.ResourceExhausted, "no space")
	if got := w.called(); len(got) != 1 || !strings.HasPrefix(got[0], "getvolumename") {
		t.Errorf("calls: %q", got)
	}
	w.ok(os.Remove(fill))
	w.ok(there.publish())
	w.ok(coming.stage())
	w.ok(coming.publish())
	w.ok(inline.publish())
	w.ok(inline.unpublish())
	coming.back()
	there.back()
	for _, kind := range []string{"attached", "staged", "published"} {
		if left, _ := filepath.Glob(filepath.Join(w.root, "state/volumes/*", kind, "*")); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}
