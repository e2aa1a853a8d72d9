package attacher

import (
	"errors"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// TestAttach: the driver gets all that the volume says, and the objects keep all
// that others wrote, with all that a detach needs.
func TestAttach(t *testing.T) {
	w := newWorld(t, Options{}, pv(), va(), csiNode(), node(), secret())
	w.works(kindAttachment, "va")
	w.called(publishRequest())
	w.attachment(va(recorded, attached))
	w.volume(pv(kept))
	// What a detach needs is there before the call, what came of it after.
	w.written("update persistentvolumes", "update volumeattachments", "patch volumeattachments")
}

// TestAttachByMode: a raw device has no filesystem to tell of, and what has one may
// say so.
func TestAttachByMode(t *testing.T) {
	for mode, want := range map[corev1.PersistentVolumeMode]*csipb.ControllerPublishVolumeRequest{
		corev1.PersistentVolumeFilesystem: publishRequest(),
		corev1.PersistentVolumeBlock:      publishRequest(),
	} {
		if mode == corev1.PersistentVolumeBlock {
			want.VolumeCapability.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		}
		w := newWorld(t, Options{}, pv(func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = &mode }), va(),
			csiNode(), secret())
		w.works(kindAttachment, "va")
		w.called(want)
	}
}

// TestAttachFails: the error is on the attachment, with its code, and the
// finalizers stay: the driver may have attached.
func TestAttachFails(t *testing.T) {
	w := newWorld(t, Options{}, pv(), va(), csiNode(), secret())
	w.driver.OnCall("ControllerPublishVolume", func(int, any) csitest.Action {
		return csitest.Action{Err: status.Error(codes.ResourceExhausted, "full")}
	})
	if _, err := w.reconcile(kindAttachment, "va"); status.Code(errors.Unwrap(err)) != codes.ResourceExhausted {
		t.Errorf("ends with %v", err)
	}
	w.attachment(va(recorded, func(a *storagev1.VolumeAttachment) {
		a.Status.AttachError = &storagev1.VolumeError{
			Message: "ResourceExhausted: full", ErrorCode: ptr.To(int32(codes.ResourceExhausted)),
		}
	}))
}

// TestRefusedAttach: what cannot be attached says why once, and the driver
// hears nothing of it.
func TestRefusedAttach(t *testing.T) {
	for name, c := range map[string]struct {
		volume       *corev1.PersistentVolume
		node         *storagev1.CSINode
		reason, says string
	}{
		"no node": {pv(), &storagev1.CSINode{}, "DriverMissing", "driver d.example has not registered on node n1"},
		"other driver": {
			pv(func(v *corev1.PersistentVolume) { v.Spec.CSI.Driver = "e.example" }), csiNode(), "NotMine",
			"volume pv is of driver e.example, not d.example",
		},
		"no volume": {&corev1.PersistentVolume{}, csiNode(), "VolumeMissing", "volume pv does not exist or is no CSI volume"},
	} {
		t.Run(name, func(t *testing.T) {
			c.node.Name = "n1"
			if c.volume.Name == "" {
				c.volume.Name = "another"
			}
			w := newWorld(t, Options{}, c.volume, va(), c.node, secret())
			w.works(kindAttachment, "va")
			w.called()
			want := va(func(a *storagev1.VolumeAttachment) { a.Status.AttachError = &storagev1.VolumeError{Message: c.says} })
			w.attachment(want)
			w.works(kindAttachment, "va")
			w.written("patch volumeattachments")
			w.told("Warning VolumeAttachment va " + c.reason + ": " + c.says + " (1)")
		})
	}
}

// TestDetach: the driver gets what the attachment recorded, whatever is gone
// since; only our finalizer goes.
func TestDetach(t *testing.T) {
	w := newWorld(t, Options{}, va(recorded, attached, going), secret())
	w.works(kindAttachment, "va")
	w.called(unpublishRequest())
	w.attachment(va(attached, going, func(a *storagev1.VolumeAttachment) {
		a.Annotations[volume.AnnNodeID], a.Annotations[volume.AnnDetach] = "id-n1", detachNote
	}))
}

// TestDetachByVolume: what another attacher attached has no record; the volume
// and the node say all of it.
func TestDetachByVolume(t *testing.T) {
	theirs := func(a *storagev1.VolumeAttachment) { a.Finalizers = append(a.Finalizers, ours) }
	w := newWorld(t, Options{}, pv(), va(theirs, attached, going), csiNode(), secret())
	w.works(kindAttachment, "va")
	w.called(unpublishRequest())
	w.attachment(va(attached, going))
}

// TestDetachWithoutSecret: a Secret that is gone stops nobody, and a driver that
// does not detach without it says so together.
func TestDetachWithoutSecret(t *testing.T) {
	w := newWorld(t, Options{}, va(recorded, attached, going))
	w.driver.OnCall("ControllerUnpublishVolume", func(n int, _ any) csitest.Action {
		if n == 1 {
			return csitest.Action{Err: status.Error(codes.Unauthenticated, "who are you")}
		}
		return csitest.Action{Answer: &csipb.ControllerUnpublishVolumeResponse{}}
	})
	_, err := w.reconcile(kindAttachment, "va")
	if err == nil || !strings.Contains(err.Error(), "who are you") || !strings.Contains(err.Error(), "read secret ns/s") {
		t.Errorf("ends with %v", err)
	}
	bare := unpublishRequest()
	bare.Secrets = nil
	w.called(bare)
	message := `Unauthenticated: who are you; read secret ns/s: secrets "s" not found`
	w.attachment(va(recorded, attached, going, func(a *storagev1.VolumeAttachment) {
		a.Status.DetachError = &storagev1.VolumeError{Message: message}
	}))
}

// TestDetachWithoutNode: to a driver no node means all nodes; nothing is called.
func TestDetachWithoutNode(t *testing.T) {
	nameless := func(a *storagev1.VolumeAttachment) { delete(a.Annotations, volume.AnnNodeID) }
	w := newWorld(t, Options{}, pv(), va(recorded, nameless, attached, going), secret())
	w.works(kindAttachment, "va")
	w.called()
	w.attachment(va(recorded, nameless, attached, going, func(a *storagev1.VolumeAttachment) {
		a.Status.DetachError = &storagev1.VolumeError{
			Message: "driver d.example is not known on node n1 and attachment va does not say from where to detach",
		}
	}))
}

// TestOldNodeIsLeft: a node that has another name now is left under the old one
// first.
func TestOldNodeIsLeft(t *testing.T) {
	old := func(a *storagev1.VolumeAttachment) { a.Annotations[volume.AnnNodeID] = "id-old" }
	w := newWorld(t, Options{}, pv(), va(recorded, old), csiNode(), secret())
	w.works(kindAttachment, "va")
	left := unpublishRequest()
	left.NodeId = "id-old"
	w.called(left, publishRequest())
	w.attachment(va(recorded, attached))
}

// TestDummy: an attacher without a driver marks and lets go.
func TestDummy(t *testing.T) {
	of := func(a *storagev1.VolumeAttachment) { a.Spec.Attacher = "none.example" }
	w := newWorld(t, Options{Dummy: "none.example"}, pv(), va(of))
	w.works(kindAttachment, "va")
	w.called()
	w.attachment(va(of, func(a *storagev1.VolumeAttachment) { a.Status.Attached = true }))
}

// TestVolumeIsLetGo: a volume that is being deleted is kept while an attachment
// names it, and loses no finalizer but ours.
func TestVolumeIsLetGo(t *testing.T) {
	free := newWorld(t, Options{}, pv(dying, kept))
	free.works(kindVolume, "pv")
	free.works(kindVolume, "pv")
	free.volume(pv(dying))
	free.written("update persistentvolumes")
	free.works(kindVolume, "none")
	used := newWorld(t, Options{}, pv(dying, kept), va(recorded, attached))
	used.works(kindVolume, "pv")
	used.volume(pv(dying, kept))
	used.written()
}
