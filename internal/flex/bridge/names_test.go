package bridge

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/flex"
)

// attachedTo says whether a node has the volume of a name, as the driver sees it.
func (w *bridged) attachedTo(name string) bool {
	_, err := os.Stat(filepath.Join(w.dir, "pool/attached", name, nodeName))
	return err == nil
}

// TestSharedName: two objects that stand for the same data are attached under
// one name. Releasing the first does not detach it from the other.
func TestSharedName(t *testing.T) {
	t.Parallel()
	options := map[string]string{"file": "data", "size": "32Mi"}
	for what, pair := range map[string]func(w *bridged) (first, second *volumeOf){
		"two PersistentVolumes": func(w *bridged) (*volumeOf, *volumeOf) {
			d := w.run(lofs)[0]
			return w.volume(d, "pv-1", options), w.volume(d, "pv-2", options)
		},
		"two Pods": func(w *bridged) (*volumeOf, *volumeOf) {
			d := w.run(lofs)[0]
			return w.inline(d, "1", options), w.inline(d, "2", options)
		},
		"a Pod and a PersistentVolume": func(w *bridged) (*volumeOf, *volumeOf) {
			d := w.run(lofs)[0]
			return w.inline(d, "1", options), w.volume(d, "pv-1", options)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newBridged(t)
			w.install("lofs")
			a, b := pair(w)
			bring := func(v *volumeOf) {
				if strings.HasPrefix(v.id, "csi-") {
					w.ok(v.publish())
				} else {
					v.forward()
				}
			}
			take := func(v *volumeOf) {
				w.ok(v.unpublish())
				if !strings.HasPrefix(v.id, "csi-") {
					w.ok(v.unstage())
					w.ok(v.detach())
				}
			}
			bring(a)
			bring(b)
			take(a)
			if !w.attachedTo("data") {
				t.Error("detached while the other one is mounted")
			}
			if _, err := os.Stat(filepath.Join(b.target, "lost+found")); err != nil {
				t.Error(err)
			}
			take(b)
			if w.attachedTo("data") {
				t.Error("the last one did not detach")
			}
			w.empty()
		})
	}
}

// TestNameOfAnother: the name of one object may be what the driver calls the
// volume of another one. Detaching the first once more, after its record is gone, does
// not detach the second.
func TestNameOfAnother(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	d := w.run(lofs)[0]
	live := w.volume(d, "pv-1", map[string]string{"file": "db", "size": "32Mi"})
	other := w.volume(d, "db", map[string]string{"file": "other", "size": "32Mi"})
	live.forward()
	other.forward()
	other.back()
	// The answer was lost.
	w.ok(other.detach())
	if !w.attachedTo("db") {
		t.Error("the other one was detached")
	}
	live.back()
	w.empty()
}

// TestSharedNameInARace: one Pod is deleted while another one is created.
func TestSharedNameInARace(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	d := w.run(lofs)[0]
	options := map[string]string{"file": "data", "size": "32Mi"}
	a, b := w.inline(d, "1", options), w.inline(d, "2", options)
	w.ok(a.publish())
	begun := filepath.Join(w.dir, "begun")
	w.on("detach", `>`+begun+`; sleep 0.2`)
	for i := range 4 {
		gone := make(chan error, 1)
		go func() { gone <- a.unpublish() }()
		if i%2 == 0 {
			w.eventually(func() error { return os.Remove(begun) })
		}
		w.ok(b.publish())
		w.ok(<-gone)
		if !w.attachedTo("data") {
			t.Fatal("mounted and not attached")
		}
		a, b = b, a
	}
	w.ok(a.unpublish())
	w.empty()
}

// TestMapping: each CSI call is the driver's calls that the mapping says, with
// the arguments of a kubelet; and again, none.
func TestMapping(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	w.install("scratch")
	drivers := w.run(lofs, scratch)
	v := w.volume(drivers[0], "pv-1", map[string]string{
		"file": "data", "size": "32Mi", "csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.uid": "uid-1",
	})
	s := w.volume(drivers[1], "pv-2", map[string]string{"size": "4Mi"})
	v.secrets = map[string]string{"user": "me"}
	w.called()
	for _, c := range []struct {
		what string
		call func() error
		want string
	}{
		{"attach", v.attach, `getvolumename {"file":"data","pvOrVolumeName":"pv-1","readwrite":"rw","size":"32Mi"}
attach {"file":"data","pvOrVolumeName":"pv-1","readwrite":"rw","size":"32Mi"} n1`},
		{"attach again", v.attach, `isattached {"file":"data","pvOrVolumeName":"pv-1","readwrite":"rw","size":"32Mi"} n1`},
		{"stage", v.stage, `waitforattach {"file":"data","pvOrVolumeName":"pv-1","readwrite":"rw","size":"32Mi"}
mountdevice ROOT/plugins/kubernetes.io/flexvolume/example.com/lofs/mounts/pv-1 DEVICE {"file":"data","pvOrVolumeName":"pv-1","readwrite":"rw","size":"32Mi"}`},
		{"stage again", v.stage, ""},
		{"publish", v.publish, `mount ROOT/pods/uid-1/volumes/example.com~lofs/pv-1 {"file":"data","pod.name":"p","pod.uid":"uid-1","pvOrVolumeName":"pv-1","readwrite":"rw","secret/user":"bWU=","size":"32Mi"}`},
		{"publish again", v.publish, ""},
		{"unpublish", v.unpublish, `unmount ROOT/pods/uid-1/volumes/example.com~lofs/pv-1`},
		{"unpublish again", v.unpublish, ""},
		{"unstage", v.unstage, `unmountdevice ROOT/plugins/kubernetes.io/flexvolume/example.com/lofs/mounts/pv-1`},
		{"unstage again", v.unstage, ""},
		{"detach", v.detach, "detach data n1"},
		{"detach again", v.detach, "detach pv-1 n1"},
		{
			"publish without attach", s.publish,
			`mount ROOT/pods/uid-1/volumes/example.com~scratch/pv-2 {"pvOrVolumeName":"pv-2","readwrite":"rw","size":"4Mi"}`,
		},
		{"unpublish without attach", s.unpublish, "unmount ROOT/pods/uid-1/volumes/example.com~scratch/pv-2"},
	} {
		if err := c.call(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if diff := cmp.Diff(c.want, w.told()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
	w.empty()
}

// TestOtherNode: attaching to another node, and detaching from it, needs nothing
// of that node.
func TestOtherNode(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	d := w.run(lofs)[0]
	w.called()
	_, err := d.ControllerClient().ControllerPublishVolume(t.Context(), &csipb.ControllerPublishVolumeRequest{
		VolumeId: "pv-1", NodeId: "n2", VolumeContext: map[string]string{"file": "data", "size": "32Mi"},
		VolumeCapability: csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "", nil),
	})
	w.ok(err)
	// From all nodes.
	_, err = d.ControllerClient().ControllerUnpublishVolume(t.Context(),
		&csipb.ControllerUnpublishVolumeRequest{VolumeId: "pv-1"})
	w.ok(err)
	if got := w.told(); !strings.Contains(got, "\nattach {") || !strings.HasSuffix(got, "\ndetach data n2") {
		t.Errorf("calls:\n%s", got)
	}
	w.empty()
}

// TestDetachedName: with `volumeName: pv` the driver is never called for a name.
func TestDetachedName(t *testing.T) {
	t.Parallel()
	w := newBridged(t)
	w.install("lofs")
	w.config.Drivers["example.com/lofs"] = decide.Settings{VolumeName: decide.NameOfVolume}
	v := w.volume(w.run(lofs)[0], "pv-1", map[string]string{"file": "data", "size": "32Mi"})
	w.called()
	w.ok(v.attach())
	w.ok(v.detach())
	if got := w.told(); strings.Contains(got, "getvolumename") || !strings.HasSuffix(got, "detach pv-1 n1") {
		t.Errorf("calls:\n%s", got)
	}
}
