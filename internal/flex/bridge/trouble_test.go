package bridge

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
)

// TestRestart: the next bridge undoes what the previous one has done, with nothing but
// its own records.
func TestRestart(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	w.install("scratch")
	drivers := w.run(lofs, scratch)
	v := w.volume(drivers[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
	s := w.volume(drivers[1], "pv-2", map[string]string{"size": "4Mi"})
	v.forward()
	w.ok(s.publish())
	w.stop()
	drivers = w.run(lofs, scratch)
	v.d, s.d = drivers[0], drivers[1]
	w.called()
	w.ok(v.attach())
	w.ok(v.stage())
	w.ok(v.publish())
	w.ok(s.publish())
	if got := w.called(); len(got) != 1 || !strings.HasPrefix(got[0], "isattached") {
		t.Errorf("a volume that is there caused calls: %q", got)
	}
	r, err := v.d.NodeClient().NodeExpandVolume(t.Context(), &csipb.NodeExpandVolumeRequest{
		VolumeId: v.id, VolumePath: v.target, CapacityRange: &csipb.CapacityRange{RequiredBytes: 32 * mib},
	})
	if err != nil || r.GetCapacityBytes() != 32*mib {
		t.Errorf("grow after a restart: %v, %v", r, err)
	}
	v.back()
	w.ok(s.unpublish())
	w.empty()
}

// TestRecordsAreLost: what is mounted at the paths is unmounted all the same.
func TestRecordsAreLost(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	v := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
	v.forward()
	w.stop()
	w.ok(os.RemoveAll(filepath.Join(w.root, "state/volumes")))
	v.d = w.run(lofs)[0]
	v.back()
	w.empty()
}

// TestDamagedRecord is set aside, and nothing else suffers.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	v := w.volume(w.run(scratch)[0], "pv-1", nil)
	w.ok(v.publish())
	w.stop()
	files, err := filepath.Glob(filepath.Join(w.root, "state/volumes/*/published/*.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	w.ok(os.WriteFile(files[0], []byte(`{"format":1,"kind":"published","volume":`), 0o600))
	v.d = w.run(scratch)[0]
	w.ok(v.unpublish())
	w.ok(os.Remove(filepath.Join(w.root, "state/volumes/quarantine", filepath.Base(files[0])+".0")))
	w.empty()
}

// TestReboot: what a record of an earlier boot says is not believed.
func TestReboot(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	v := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
	v.forward()
	w.stop()
	files, err := filepath.Glob(filepath.Join(w.root, "state/volumes/*/*/*.json"))
	w.ok(err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		w.ok(err)
		of := regexp.MustCompile(`"boot":"[^"]*"`)
		if !of.Match(data) {
			t.Errorf("%s names no boot: %s", f, data)
		}
		w.ok(os.WriteFile(f, of.ReplaceAll(data, []byte(`"boot":"another"`)), 0o600))
	}
	v.d = w.run(lofs)[0]
	w.ok(mount.Unmount(v.target))
	points, err := mount.Below(w.root)
	w.ok(err)
	for i := len(points) - 1; i >= 0; i-- {
		w.ok(mount.Unmount(points[i].Path))
	}
	image := filepath.Join(w.dir, "pool/data.img")
	w.ok(mount.LoopDetach(image))
	w.givenBack(image)
	w.ok(os.Remove(v.target))
	w.called()
	v.forward()
	if got := fmt.Sprint(w.called()); !strings.Contains(got, "mountdevice") || !strings.Contains(got, "waitforattach") {
		t.Errorf("calls after a reboot: %s", got)
	}
	if _, err := os.Stat(filepath.Join(v.target, "lost+found")); err != nil {
		t.Error(err)
	}
	v.back()
	w.empty()
}

// TestDriverIsRemoved: if a driver is removed while a volume of it is in use, the volume
// can still be unmounted, also by the next bridge, and the driver serves nothing else
// (H16).
func TestDriverIsRemoved(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			w := newBridged(t)
			w.install("lofs")
			v := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
			v.forward()
			w.ok(os.RemoveAll(filepath.Join(w.dir, "plugins/example.com~lofs")))
			name := decide.Name{Vendor: "example.com", Driver: "lofs"}
			w.eventually(func() error {
				if _, err := w.bridge.Host.Get(name); err == nil {
					return fmt.Errorf("it is there still")
				}
				return nil
			})
			if restart {
				w.stop()
				v.d = w.run(lofs)[0]
			}
			other := w.volume(v.d, "pv-2", map[string]string{"file": "other", "size": "32Mi"})
			w.refused("attach another", other.attach(), codes.Unavailable, "removed")
			w.refused("stage another", other.stage(), codes.Unavailable, "removed")
			w.refused("publish another", other.publish(), codes.Unavailable, "removed")
			v.back()
			w.empty()
			w.eventually(func() error {
				if _, err := os.Stat(w.socket(lofs)); err == nil {
					return fmt.Errorf("the socket is there still")
				}
				return nil
			})
		})
	}
}

// TestDriverBreaks: a broken driver is only called to unmount and detach, and is used
// again when it is repaired.
func TestDriverBreaks(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	v := w.volume(w.run(scratch)[0], "pv-1", nil)
	w.ok(v.publish())
	w.write("scratch", "#!/bin/sh\necho '{\"status\":\"Failure\",\"message\":\"out of order\"}'; exit 1\n")
	other := w.volume(v.d, "pv-2", nil)
	w.eventually(func() error {
		if err := other.publish(); err != nil && strings.Contains(err.Error(), "out of order") {
			w.refused("publish", err, codes.Unavailable)
			return nil
		}
		if err := other.unpublish(); err != nil {
			return err
		}
		return fmt.Errorf("it is not broken yet")
	})
	w.ok(v.unpublish())
	w.install("scratch")
	w.eventually(other.publish)
	w.ok(other.unpublish())
	w.empty()
}

// TestDriverNoLongerAttaches: if a driver stops attaching while a volume is attached,
// that volume is detached as before, and new ones are mounted without attach.
func TestDriverNoLongerAttaches(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	v := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
	v.forward()
	w.on("init", `answer '{"status":"Success","capabilities":{"attach":false}}'; exit 0`)
	w.on("mount", `mkdir -p "$2" && mount -t tmpfs flip "$2" && answer '{"status":"Success"}'; exit 0`)
	w.on("unmount",
		`while [ -n "$(mounted "$2")" ]; do umount "$2"; done; rmdir "$2"; answer '{"status":"Success"}'; exit 0`)
	w.install("lofs")
	w.eventually(func() error {
		if v.d = w.dial(lofs); v.d.Node.Stats {
			return fmt.Errorf("it is served as before")
		}
		return nil
	})
	if !v.d.Node.StageUnstage || !v.d.Controller.PublishUnpublish {
		t.Error("what is staged could not be unstaged")
	}
	v.back()
	w.eventually(func() error {
		d := w.dial(lofs)
		if d.Node.StageUnstage || d.Controller.PublishUnpublish {
			return fmt.Errorf("it is served as one that attaches still")
		}
		v.d = d
		return nil
	})
	w.called()
	w.ok(v.publish())
	w.ok(v.unpublish())
	if got := w.called(); len(got) != 2 {
		t.Errorf("calls %q", got)
	}
	w.empty()
}

func inlineID(digit string) string { return "csi-" + strings.Repeat(digit, 64) }

// inline returns a volume that a Pod names itself.
func (w *bridged) inline(d *csi.Driver, digit string, options map[string]string) *volumeOf {
	w.Helper()
	v := w.volume(d, inlineID(digit), map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.namespace": "team-a",
		"csi.storage.k8s.io/pod.name": "p",
	})
	for k, value := range options {
		v.context[k] = value
	}
	v.staging = ""
	v.target = filepath.Join(w.dir, "pods/uid-"+digit+"/volumes/kubernetes.io~csi/data/mount")
	w.ok(os.MkdirAll(filepath.Dir(v.target), 0o750))
	return v
}

// TestInlineAttachable: for a volume that a Pod names the node attaches, with
// the same calls (F-028). Two of one name are two.
func TestInlineAttachable(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	d := w.run(lofs)[0]
	a := w.inline(d, "1", map[string]string{"file": "a", "size": "32Mi"})
	b := w.inline(d, "2", map[string]string{"file": "b", "size": "32Mi"})
	w.called()
	w.ok(a.publish())
	want := `getvolumename {"file":"a","pvOrVolumeName":"data","readwrite":"rw","size":"32Mi"}
attach {"file":"a","pvOrVolumeName":"data","readwrite":"rw","size":"32Mi"} n1
waitforattach {"file":"a","pvOrVolumeName":"data","readwrite":"rw","size":"32Mi"}
mountdevice ROOT/plugins/kubernetes.io/flexvolume/example.com/lofs/mounts/` + a.id +
		` DEVICE {"file":"a","pvOrVolumeName":"data","readwrite":"rw","size":"32Mi"}
mount ROOT/pods/uid-1/volumes/example.com~lofs/data {"file":"a","pod.name":"p","pod.namespace":"team-a","pvOrVolumeName":"data","readwrite":"rw","size":"32Mi"}`
	if got := w.told(); got != want {
		t.Errorf("calls:\n%s", got)
	}
	w.ok(b.publish())
	w.ok(a.publish())
	w.called()
	w.ok(a.unpublish())
	if got := w.told(); got != "unmount ROOT/pods/uid-1/volumes/example.com~lofs/data\nunmountdevice "+
		"ROOT/plugins/kubernetes.io/flexvolume/example.com/lofs/mounts/"+a.id+"\ndetach a n1" {
		t.Errorf("calls:\n%s", got)
	}
	w.ok(a.unpublish())
	w.ok(b.unpublish())
	w.empty()
}

// TestInlineFailure: wherever it fails, nothing is left, or the error says that
// something may be.
func TestInlineFailure(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"attach", "waitforattach", "mountdevice", "mount"} {
		t.Run(op, func(t *testing.T) {
			w := newBridged(t)
			w.install("lofs")
			v := w.inline(w.run(lofs)[0], "1", map[string]string{"file": "a", "size": "32Mi"})
			w.on(op, `fail "no luck"`)
			w.refused(op, v.publish(), codes.Internal, "no luck")
			w.empty()
			if marks, _ := filepath.Glob(filepath.Join(w.dir, "pool/attached/*/*")); len(marks) > 0 {
				t.Errorf("attached: %v", marks)
			}
			w.on("detach", `fail "neither"`)
			w.refused(op+" and detach", v.publish(), codes.Aborted, "no luck", "neither")
			w.on("detach", "")
			w.on(op, "")
			w.ok(v.unpublish())
			w.empty()
			w.ok(v.publish())
			w.ok(v.unpublish())
			w.empty()
		})
	}
}

// TestPolicy: what a Pod's author may not request never reaches a driver; what an
// administrator requests does.
func TestPolicy(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	w.config.Policy = decide.Policy{
		{Namespaces: []string{"team-a"}, Driver: "example.com/scratch", Options: map[string]string{"size": "[1-9]Mi"}},
	}
	d := w.run(scratch)[0]
	w.called()
	for name, change := range map[string]func(v *volumeOf){
		"option":      func(v *volumeOf) { v.context["share"] = "all" },
		"value":       func(v *volumeOf) { v.context["size"] = "900Gi" },
		"namespace":   func(v *volumeOf) { v.context["csi.storage.k8s.io/pod.namespace"] = "team-b" },
		"filesystem":  func(v *volumeOf) { v.fsType = "x; reboot" },
		"no Pod info": func(v *volumeOf) { v.context = map[string]string{"size": "4Mi"} },
	} {
		v := w.inline(d, "1", map[string]string{"size": "4Mi"})
		v.fsType = ""
		change(v)
		w.refused(name, v.publish(), codes.PermissionDenied, "FlexNotAllowed")
	}
	if got := w.called(); len(got) > 0 {
		t.Errorf("calls: %q", got)
	}
	w.empty()
	good := w.inline(d, "1", map[string]string{"size": "4Mi"})
	good.fsType = ""
	w.ok(good.publish())
	w.ok(good.unpublish())
	other := w.volume(d, "pv-1", map[string]string{"size": "20Mi"})
	w.ok(other.publish())
	w.ok(other.unpublish())
	w.empty()
}

// TestSecretsStayHidden: they reach the driver, and nothing else: no record, no
// log, no error, however the driver shows them.
func TestSecretsStayHidden(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	v := w.volume(w.run(scratch)[0], "pv-1", nil)
	const plain, encoded = "s3cr3t $(touch /x) 'q'", "czNjcjN0ICQodG91Y2ggL3gpICdxJw=="
	v.secrets = map[string]string{"password": plain, "long": strings.Repeat("y", 60<<10)}
	var told []string
	for _, script := range []string{
		`fail "cannot: $3"`, `printf '%s\n' "$3" >&3; exit 3`, `exec >&3 2>&3; printf '%s' "$3"; exit 0`,
		`printf '%s' "$3" >&3; kill -9 $$`,
		`fail "` + encoded + `"`, `fail "` + strings.ReplaceAll(plain, "$", `\$`) + `"`,
	} {
		w.on("mount", script)
		err := v.publish()
		if err == nil {
			t.Errorf("%s: no error", script)
			continue
		}
		told = append(told, err.Error())
		w.ok(v.unpublish())
	}
	w.on("mount", "")
	w.called()
	w.ok(v.publish())
	if got := fmt.Sprint(w.called()); !strings.Contains(got, encoded) {
		t.Error("the driver did not get the secret")
	}
	// unmount is given no secret, and prints what mount has kept.
	w.on("unmount", `fail "s3cr3t%20%24(touch%20 or `+encoded[4:20]+`"`)
	err := v.unpublish()
	w.refused("unmount that prints a secret", err, codes.Internal, "***")
	told = append(told, fmt.Sprint(err))
	w.on("unmount", "")
	w.ok(filepath.WalkDir(filepath.Join(w.root, "state"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		told = append(told, string(data))
		if info, e := d.Info(); e != nil || info.Mode().Perm()&0o077 != 0 && !strings.Contains(path, "/kept/") {
			t.Errorf("%s can be read by others: %v", path, info.Mode())
		}
		return err
	}))
	told = append(told, w.logged.String())
	for _, text := range told {
		for _, secret := range []string{plain, encoded, encoded[:20], encoded[4:20], strings.Repeat("y", 100), "s3cr3t"} {
			if strings.Contains(text, secret) {
				t.Errorf("%.40q is in %.400q", secret, text)
			}
		}
	}
	w.ok(v.unpublish())
	v.secrets["long"] = strings.Repeat("z", 120<<10)
	w.refused("a secret that is too long", v.publish(), codes.InvalidArgument, "too long")
	w.empty()
}

// TestHostileRequests: nothing is made, mounted or unmounted by way of an id or
// a path that is not one place, and no option speaks in the host's name.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	d := w.run(lofs)[0]
	w.ok(os.Symlink(w.dir, filepath.Join(w.dir, "link")))
	w.called()
	calls := func(v *volumeOf) map[string]error {
		return map[string]error{
			"attach": v.attach(), "stage": v.stage(), "publish": v.publish(), "unpublish": v.unpublish(), "unstage": v.unstage(),
		}
	}
	for _, id := range []string{"", ".", "..", "a/b", "../x", "a\x00b", strings.Repeat("i", 256)} {
		v := w.volume(d, "pv-1", nil)
		v.id = id
		for what, err := range calls(v) {
			w.refused(fmt.Sprintf("%s of %.10q", what, id), err, codes.InvalidArgument)
		}
	}
	for _, path := range []string{
		"", "relative", w.dir + "/", w.dir + "/../x", w.dir + "/link/x", w.dir + "/link", "/" + strings.Repeat("p", 5000),
	} {
		v := w.volume(d, "pv-1", nil)
		v.staging, v.target = path, path
		for what, err := range calls(v) {
			if what != "attach" {
				w.refused(fmt.Sprintf("%s at %.40q", what, path), err, codes.InvalidArgument)
			}
		}
		w.ok(v.detach())
	}
	for _, key := range []string{"kubernetes.io/readwrite", "kubernetes.io/secret/x", "x.k8s.io/y"} {
		v := w.volume(d, "pv-1", map[string]string{key: "rw"})
		w.refused(key, v.attach(), codes.InvalidArgument, key)
		w.refused(key, v.stage(), codes.InvalidArgument, key)
		w.refused(key, v.publish(), codes.InvalidArgument, key)
	}
	v := w.volume(d, "pv-1", map[string]string{"file": "x", "size": "32Mi"})
	w.ok(os.MkdirAll(v.target+"/precious", 0o700))
	w.refused("publish over files", v.publish(), codes.FailedPrecondition)
	w.ok(os.Remove(v.target + "/precious"))
	w.ok(unix.Mount("none", v.target, "tmpfs", 0, ""))
	w.refused("publish over a mount", v.publish(), codes.FailedPrecondition)
	w.refused("unpublish a foreign mount", v.unpublish(), codes.FailedPrecondition, "something else")
	w.ok(mount.Unmount(v.target))
	w.empty()
}

// TestSameDirectory: two targets that would have the same private directory.
func TestSameDirectory(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	d := w.run(scratch)[0]
	a, b := w.volume(d, "pv-1", nil), w.volume(d, "pv-1", nil)
	b.target = filepath.Join(w.dir, "other/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount")
	w.ok(os.MkdirAll(filepath.Dir(b.target), 0o700))
	w.ok(a.publish())
	w.refused("publish", b.publish(), codes.FailedPrecondition, "same Pod")
	w.ok(a.unpublish())
	w.empty()
}

// TestOneBridge: two would take each other's mounts away.
func TestOneBridge(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.run()
	if _, err := Open(w.bridge.Options); err == nil || !strings.Contains(err.Error(), "another bridge") {
		t.Error(err)
	}
	for _, root := range []string{"/a/b", "/a/b/c/d", "a/b/c", "/a/b/c/"} {
		if checkRoot(root) == nil {
			t.Errorf("root %s is accepted", root)
		}
	}
}
