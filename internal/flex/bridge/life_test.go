package bridge

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
)

// told are the calls so far with short words for what differs in each test.
func (w *bridged) told() string {
	w.Helper()
	var out []string
	for _, c := range w.called() {
		op, rest, _ := strings.Cut(c, " ")
		rest = strings.NewReplacer(w.root, "ROOT").Replace(rest)
		var words []string
		for word := range strings.FieldsSeq(rest) {
			switch {
			case strings.HasPrefix(word, "{"):
				word = keysOf(w.T, word)
			case strings.HasPrefix(word, "/dev/loop"):
				word = "DEVICE"
			}
			words = append(words, word)
		}
		out = append(out, strings.TrimSpace(op+" "+strings.Join(words, " ")))
	}
	return strings.Join(out, "\n")
}

// keysOf shows the JSON argument without the keys that begin with kubernetes.io and are
// irrelevant here.
func keysOf(t *testing.T, arg string) string {
	t.Helper()
	all := map[string]string{}
	if err := json.Unmarshal([]byte(arg), &all); err != nil {
		t.Fatalf("%s: %v", arg, err)
	}
	out := map[string]string{}
	for k, v := range all {
		switch short := strings.TrimPrefix(k, "kubernetes.io/"); {
		case v == "" || k == decide.KeyFSType:
		default:
			out[short] = v
		}
	}
	b, _ := json.Marshal(out)
	return string(b)
}

// TestCapabilities: what a driver says is what CSI says.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	w.install("scratch")
	w.config.Drivers["example.com/scratch"] = decide.Settings{SkipExpandVolume: true}
	drivers := w.run(lofs, scratch)
	a, b := drivers[0], drivers[1]
	type able struct {
		csi.PluginCapabilities
		csi.ControllerCapabilities
		csi.NodeCapabilities
	}
	for _, c := range []struct{ want, got able }{
		{able{
			csi.PluginCapabilities{ControllerService: true, OnlineExpansion: true},
			csi.ControllerCapabilities{PublishUnpublish: true, PublishReadonly: true},
			csi.NodeCapabilities{StageUnstage: true, MountGroup: true, Stats: true, Expand: true},
		}, able{a.Plugin, a.Controller, a.Node}},
		{able{
			PluginCapabilities: csi.PluginCapabilities{ControllerService: true},
			NodeCapabilities:   csi.NodeCapabilities{MountGroup: true, Stats: true},
		}, able{b.Plugin, b.Controller, b.Node}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Error(diff)
		}
	}
	for name, d := range map[string]*csi.Driver{lofs: a, scratch: b} {
		info, err := d.NodeInfo(t.Context())
		if err != nil || info.ID != nodeName || d.Name != name || len(d.Version) != 16 || !d.HasController {
			t.Errorf("%s: %+v, version %s, controller %t, %v", name, info, d.Version, d.HasController, err)
		}
	}
}

// TestObject: the CSIDriver of a FlexVolume driver says how Pods may use it.
func TestObject(t *testing.T) {
	t.Parallel()
	o := Object(Served{Name: scratch, Flex: "example.com/scratch"})
	if *o.Spec.AttachRequired || !*o.Spec.PodInfoOnMount ||
		len(o.Spec.VolumeLifecycleModes) != 2 || o.Annotations["volplane.dev/flex-driver"] != "example.com/scratch" {
		t.Errorf("object %+v", o)
	}
}

// TestReadOnly: the driver receives the read-only option, and even if it ignores it, the
// target is not writable.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	// One that does not listen.
	w.on("mount", `set -- "$1" "$2" "$(printf %s "$3" | sed 's/"ro"/"rw"/')"`)
	v := w.volume(w.run(scratch)[0], "pv-1", nil)
	v.readOnly = true
	w.called()
	w.ok(v.publish())
	if got := w.told(); !strings.Contains(got, `"readwrite":"ro"`) {
		t.Error(got)
	}
	if err := os.WriteFile(filepath.Join(v.target, "f"), nil, 0o600); err == nil {
		t.Error("the target can be written to")
	}
	v.readOnly = false
	w.refused("publish to write", v.publish(), codes.AlreadyExists, "another way")
	w.ok(v.unpublish())
	w.empty()
}

// TestReadOnlyAttach: what is attached to read is staged to read.
func TestReadOnlyAttach(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	v := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
	v.forward()
	v.back()
	v.readOnly = true
	w.called()
	v.ok(v.attach())
	// A kubelet passes readOnly in no other call.
	v.readOnly = false
	v.ok(v.stage())
	v.ok(v.publish())
	got := w.told()
	for _, op := range []string{"attach", "waitforattach", "mountdevice", "mount"} {
		if !strings.Contains("\n"+got, "\n"+op+" ") {
			t.Errorf("no %s in\n%s", op, got)
		}
	}
	if strings.Contains(got, `"readwrite":"rw"`) {
		t.Error(got)
	}
	at := deviceDir(w.root, decide.Name{Vendor: "example.com", Driver: "lofs"}, v.id)
	if p, mounted, err := mount.At(at); err != nil || !mounted || !p.ReadOnly {
		t.Errorf("the device is mounted as %+v, %v", p, err)
	}
	w.refused("attach to write", v.attach(), codes.AlreadyExists)
	v.back()
	w.empty()
}

// TestGroup: the driver gets the group by both names, and the files are given
// to it, unless the driver says that this is not for it.
func TestGroup(t *testing.T) {
	t.Parallel()
	for name, mine := range map[string]bool{"host": true, "driver": false} {
		t.Run(name, func(t *testing.T) {
			w := newBridged(t)
			w.install("scratch")
			// One that ignores the group.
			w.on("mount", `set -- "$1" "$2" "$(printf %s "$3" | sed 's/"[a-zA-Z./]*[fF]sGroup":"[0-9]*"/"x":"y"/g')"`)
			if !mine {
				w.on("init", `answer '{"status":"Success","capabilities":{"attach":false,"fsGroup":false}}'; exit 0`)
			}
			v := w.volume(w.run(scratch)[0], "pv-1", nil)
			v.group = "4711"
			w.called()
			w.ok(v.publish())
			if got := w.told(); !strings.Contains(got, `"fsGroup":"4711"`) ||
				!strings.Contains(got, `"mounterArgs.FsGroup":"4711"`) {
				t.Error(got)
			}
			var st unix.Stat_t
			w.ok(unix.Stat(v.target, &st))
			if (st.Gid == 4711) != mine || (st.Mode&unix.S_ISGID != 0) != mine {
				t.Errorf("group %d, mode %o", st.Gid, st.Mode)
			}
			w.ok(v.unpublish())
		})
	}
}

// TestStats: the numbers are those of the mounted volume's filesystem.
func TestStats(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	v := w.volume(w.run(scratch)[0], "pv-1", map[string]string{"size": "4Mi"})
	stats := func() (*csipb.NodeGetVolumeStatsResponse, error) {
		return v.d.NodeClient().NodeGetVolumeStats(t.Context(),
			&csipb.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.target})
	}
	_, err := stats()
	w.refused("stats of nothing", err, codes.NotFound)
	w.ok(v.publish())
	r, err := stats()
	if err != nil || r.GetUsage()[0].GetTotal() != 4*mib {
		t.Errorf("%v, %v", r, err)
	}
	w.ok(v.unpublish())
}

// TestExpand: the driver makes the volume and the filesystem larger, where it
// is; without its help the host does the second.
func TestExpand(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{"driver": "", "host": "unsupported"} {
		t.Run(name, func(t *testing.T) {
			w := newBridged(t)
			w.install("lofs")
			if script != "" {
				w.on("expandfs", script)
			}
			v := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "320Mi"})
			v.forward()
			w.called()
			r, err := v.d.NodeClient().NodeExpandVolume(t.Context(), &csipb.NodeExpandVolumeRequest{
				VolumeId: v.id, VolumePath: v.target, CapacityRange: &csipb.CapacityRange{RequiredBytes: 400 * mib},
			})
			got := w.told()
			if !strings.Contains(got, `expandvolume {"file":"data","pvOrVolumeName":"pv-1","readwrite":"rw","size":"320Mi"} ROOT/plugins/kubernetes.io/flexvolume/example.com/lofs/mounts/pv-1 419430400 335544320`) ||
				!strings.Contains(got, `expandfs {"file":"data","pvOrVolumeName":"pv-1","readwrite":"rw","size":"320Mi"} DEVICE ROOT/pods/uid-1/volumes/example.com~lofs/pv-1 419430400 335544320`) {
				t.Errorf("calls:\n%s", got)
			}
			// A filesystem that is mounted grows only with more rights than a test
			// may have; the volume has grown in any case.
			if err == nil && r.GetCapacityBytes() != 400*mib {
				t.Errorf("capacity %d", r.GetCapacityBytes())
			}
			device, e := mount.LoopFind(filepath.Join(w.dir, "pool/data.img"))
			w.ok(e)
			if size, err := mount.DeviceSize(device); err != nil || size != 400*mib {
				t.Errorf("device of %d bytes, %v", size, err)
			}
			v.back()
		})
	}
}

// TestNothingIsLeftByAFailure: when a driver fails, whatever it did is undone,
// and the call says that nothing is there.
func TestNothingIsLeftByAFailure(t *testing.T) {
	t.Parallel()
	for op, call := range map[string]func(v *volumeOf) error{
		"waitforattach": (*volumeOf).stage, "mountdevice": (*volumeOf).stage, "mount": (*volumeOf).publish,
	} {
		t.Run(op, func(t *testing.T) {
			w := newBridged(t)
			w.install("lofs")
			v := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
			w.ok(v.attach())
			if op == "mount" {
				w.ok(v.stage())
			}
			before, err := mount.Below(w.dir)
			w.ok(err)
			w.on(op,
				`case $op in mount*) mount -t tmpfs x "$2" || mkdir -p "$2" && mount -t tmpfs x "$2";; esac; fail "no luck today"`)
			w.refused(op, call(v), codes.Internal, "no luck today")
			after, err := mount.Below(w.dir)
			w.ok(err)
			if diff := cmp.Diff(before, after); diff != "" {
				t.Error(diff)
			}
			if len(v.d.Name) == 0 || len(w.bridge.records.list(decide.Name{Vendor: "example.com", Driver: "lofs"},
				func(r *record) bool { return r.Kind == published })) > 0 {
				t.Error("a record of the publication is left")
			}
			w.on(op, "")
			w.ok(call(v))
			v.back()
			w.empty()
		})
	}
}

// TestDamagedFilesystem: a device that the host must not mount is not a failure of the
// driver, and no other way of mounting it is tried.
func TestDamagedFilesystem(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	w.on("mountdevice", "unsupported")
	v := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
	w.ok(v.attach())
	w.ok(v.stage())
	w.ok(v.unstage())
	image := filepath.Join(w.dir, "pool/data.img")
	for _, r := range []string{"clri lost+found", "set_inode_field <2> mode 0", "set_super_value state 2"} {
		if out, err := exec.Command("debugfs", "-w", "-R", r, image).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", r, err, out)
		}
	}
	for range 2 {
		w.refused("stage", v.stage(), codes.FailedPrecondition, "has errors that have to be repaired manually: run e2fsck "+
			"-f /dev/loop")
	}
	w.ok(v.unstage())
	w.ok(v.detach())
	w.empty()
}

// TestSuccessWithoutAMount is a driver that unpacks into the directory.
func TestSuccessWithoutAMount(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	w.on("mount", `mkdir -p "$2"; echo hello >"$2/f"; answer '{"status":"Success"}'; exit 0`)
	w.on("unmount", `rm -f "$2/f"; answer '{"status":"Success"}'; exit 0`)
	v := w.volume(w.run(scratch)[0], "pv-1", nil)
	w.ok(v.publish())
	if data, err := os.ReadFile(filepath.Join(v.target, "f")); err != nil || string(data) != "hello\n" {
		t.Errorf("%q, %v", data, err)
	}
	w.called()
	w.ok(v.publish())
	if got := w.told(); got != "" {
		t.Errorf("called again: %s", got)
	}
	w.ok(v.unpublish())
	w.empty()
	if !strings.Contains(w.logged.String(), "driver violated its contract") {
		t.Error("nobody was told")
	}
}

// TestNothingSupported: a driver that can nothing never has the node's own disk
// mounted in its name.
func TestNothingSupported(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.write("scratch", "#!/bin/sh\n[ $1 = init ] && echo '{\"status\":\"Success\"}' && exit 0\necho '{\"status\":\"Not "+
		"supported\"}'; exit 1\n")
	v := w.volume(w.run(scratch)[0], "pv-1", nil)
	w.ok(v.attach())
	w.ok(v.stage())
	w.refused("publish", v.publish(), codes.FailedPrecondition, "not support")
	if _, mounted, err := mount.At(v.target); err != nil || mounted {
		t.Errorf("mounted %t, %v", mounted, err)
	}
	w.ok(v.unstage())
	w.ok(v.detach())
	w.empty()
}

// TestTwoPods have the same volume on one node.
func TestTwoPods(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	a := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
	b := *a
	b.target = filepath.Join(w.dir, "pods/uid-2/volumes/kubernetes.io~csi/pv-1/mount")
	w.ok(os.MkdirAll(filepath.Dir(b.target), 0o750))
	a.forward()
	w.ok(b.publish())
	w.ok(os.WriteFile(filepath.Join(a.target, "f"), []byte("x"), 0o600))
	if data, err := os.ReadFile(filepath.Join(b.target, "f")); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
	w.refused("unstage", a.unstage(), codes.FailedPrecondition, "published")
	w.refused("detach", a.detach(), codes.FailedPrecondition, "mounted")
	w.ok(a.unpublish())
	w.ok(b.unpublish())
	w.ok(a.unstage())
	w.ok(a.detach())
	w.empty()
}

// within gives a call a time to live.
func within(t *testing.T, w *bridged, script string) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	t.Cleanup(cancel)
	go func() {
		defer cancel()
		w.eventually(func() error {
			_, err := os.Stat(script)
			return err
		})
	}()
	return ctx
}

// TestCallerLeaves: the driver continues when its caller has disconnected; the same call
// joins that work, another one is refused, and the script runs once.
func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("scratch")
	begun, proceed := filepath.Join(w.dir, "begun"), filepath.Join(w.dir, "go")
	w.on("mount", ": >"+begun+"; while ! [ -e "+proceed+" ]; do sleep 0.02; done")
	v := w.volume(w.run(scratch)[0], "pv-1", nil)
	w.called()
	err := v.publishWithin(within(t, w, begun))
	w.refused("publish", err, codes.Canceled)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	w.refused("publish again", v.publishWithin(ctx), codes.DeadlineExceeded)
	w.refused("unpublish meanwhile", v.unpublish(), codes.Aborted, "in flight")
	w.ok(os.WriteFile(proceed, nil, 0o600))
	w.ok(v.publish())
	if got := w.called(); len(got) != 1 {
		t.Errorf("calls: %q", got)
	}
	w.ok(v.unpublish())
	w.empty()
}
