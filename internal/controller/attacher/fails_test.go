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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

var errNotNow = errors.New("not now")

// TestNotAsked: what would fail anyway fails before anything is written that delays
// a deletion, and says so on the attachment; what cannot be written down is not
// done. It comes back in either case.
func TestNotAsked(t *testing.T) {
	mixed := pv(func(v *corev1.PersistentVolume) {
		v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadOnlyMany)
	})
	for name, c := range map[string]struct {
		volume  *corev1.PersistentVolume
		secret  *corev1.Secret
		refuses [2]string
		says    string
		want    *storagev1.VolumeAttachment
		written []string
	}{
		"its Secret is missing": {
			volume: pv(), secret: otherSecret(), says: "read secret ns/s",
			want:    va(failed(`Unknown: read secret ns/s: secrets "s" not found`, nil)),
			written: []string{"patch volumeattachments"},
		},
		"its access modes fit nothing": {
			volume: mixed, secret: secret(), says: "access modes cannot be combined",
			want:    va(failed("Unknown: volume pv: access modes cannot be combined", nil)),
			written: []string{"patch volumeattachments"},
		},
		"its volume cannot be kept": {
			volume: pv(), secret: secret(), refuses: [2]string{"update", "persistentvolumes"}, says: "update volume pv: not now",
			want: va(), written: []string{"update persistentvolumes"},
		},
		"it cannot be recorded": {
			volume: pv(), secret: secret(), refuses: [2]string{"update", "volumeattachments"},
			says: "update attachment va: not now",
			want: va(), written: []string{"update persistentvolumes", "update volumeattachments"},
		},
		"its error cannot be written": {
			volume: mixed, secret: secret(), refuses: [2]string{"patch", "volumeattachments"},
			says: "patch attachment va: not now",
			want: va(), written: []string{"patch volumeattachments"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, c.volume, va(), csiNode(), c.secret)
			if c.refuses[0] != "" {
				w.refuses(c.refuses[0], c.refuses[1], errNotNow)
			}
			w.fails(kindAttachment, "va", c.says)
			w.called()
			w.attachment(c.want)
			w.written(c.written...)
		})
	}
}

// TestAnswerOfTheDriverIsLost: what the driver did is not known, so everything
// stays as it is, and the same call is made again.
func TestAnswerOfTheDriverIsLost(t *testing.T) {
	w := newWorld(t, Options{}, pv(), va(), csiNode(), secret())
	lost := true
	w.client.PrependReactor("patch", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
		defer func() { lost = false }()
		return lost, nil, errNotNow
	})
	w.fails(kindAttachment, "va", "patch attachment va: not now")
	w.attachment(va(recorded))
	w.works(kindAttachment, "va")
	w.attachment(va(recorded, attached))
	w.volume(pv(kept))
	w.called(publishRequest(), publishRequest())
	// Nothing that is there is written again.
	w.works(kindAttachment, "va")
	w.written("update persistentvolumes", "update volumeattachments", "patch volumeattachments", "patch volumeattachments")
}

// TestErrorIsTold: once for as often as it comes, again when it is another one; one
// that has no code takes the code of an earlier one away, and a success all of it.
func TestErrorIsTold(t *testing.T) {
	w := newWorld(t, Options{}, pv(), va(), csiNode(), secret())
	answers := []error{
		status.Error(codes.ResourceExhausted, "full"), status.Error(codes.ResourceExhausted, "full"),
		status.Error(codes.Internal, "broken"),
	}
	w.driver.OnCall("ControllerPublishVolume", func(n int, _ any) csitest.Action {
		if n > len(answers) {
			return csitest.Action{
				Answer: &csipb.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": "/dev/x"}},
			}
		}
		return csitest.Action{Err: answers[n-1]}
	})
	w.fails(kindAttachment, "va", "full")
	w.fails(kindAttachment, "va", "full")
	w.attachment(va(recorded, failed("ResourceExhausted: full", ptr.To(int32(codes.ResourceExhausted)))))
	w.fails(kindAttachment, "va", "broken")
	w.attachment(va(recorded, failed("Internal: broken", ptr.To(int32(codes.Internal)))))
	w.told("Warning VolumeAttachment va FailedAttachVolume: volume pv is not attached to node n1: "+
		"ResourceExhausted: full (1)",
		"Warning VolumeAttachment va FailedAttachVolume: volume pv is not attached to node n1: Internal: broken (1)")
	if err := w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("secrets"), "ns", "s"); err != nil {
		t.Fatal(err)
	}
	w.fails(kindAttachment, "va", "read secret ns/s")
	w.attachment(va(recorded, failed(`Unknown: read secret ns/s: secrets "s" not found`, nil)))
	if err := w.client.Tracker().Add(secret()); err != nil {
		t.Fatal(err)
	}
	w.works(kindAttachment, "va")
	w.attachment(va(recorded, attached))
	all := publishRequest()
	w.called(all, all, all, all)
}

// TestDetachFails: the finalizer stays, for it is still attached, and the error is
// where a detach's are, without a code; it is told once, and the call is repeated.
func TestDetachFails(t *testing.T) {
	w := newWorld(t, Options{}, va(recorded, attached, going), secret())
	w.driver.OnCall("ControllerUnpublishVolume", func(n int, _ any) csitest.Action {
		return csitest.Action{Err: status.Error(codes.Internal, []string{"busy", "busy", "broken: value"}[n-1])}
	})
	for range 2 {
		if err := w.fails(kindAttachment, "va", "busy"); status.Code(errors.Unwrap(err)) != codes.Internal {
			t.Errorf("ends with %v", err)
		}
		w.attachment(va(recorded, attached, going, stuck("Internal: busy")))
	}
	// The driver quotes the Secret's value.
	if err := w.fails(kindAttachment, "va", "broken"); strings.Contains(err.Error(), "value") {
		t.Errorf("the error tells a secret: %v", err)
	}
	w.attachment(va(recorded, attached, going, stuck("Internal: broken: ***")))
	w.told("Warning VolumeAttachment va FailedDetachVolume: volume pv is not detached from node n1: Internal: busy (1)",
		"Warning VolumeAttachment va FailedDetachVolume: volume pv is not detached from node n1: Internal: broken: *** (1)")
	w.called(unpublishRequest(), unpublishRequest(), unpublishRequest())
}

// TestSecretCannotBeRead: a Secret that may be there is waited for; a detach
// without it could go wrong in ways that nobody sees.
func TestSecretCannotBeRead(t *testing.T) {
	w := newWorld(t, Options{}, va(recorded, attached, going), secret())
	w.refuses("get", "secrets", errNotNow)
	w.fails(kindAttachment, "va", "read secret ns/s: not now")
	w.called()
	w.attachment(va(recorded, attached, going, stuck("Unknown: read secret ns/s: not now")))
}

// TestDetachWithoutAnySecret: what was attached without a Secret is detached so,
// whatever the volume's object has named since.
func TestDetachWithoutAnySecret(t *testing.T) {
	bare := func(a *storagev1.VolumeAttachment) { a.Annotations[volume.AnnDetach] = `{"handle":"h"}` }
	w := newWorld(t, Options{}, va(recorded, bare, attached, going))
	w.works(kindAttachment, "va")
	request := unpublishRequest()
	request.Secrets = nil
	w.called(request)
	w.attachment(va(recorded, bare, attached, going, func(a *storagev1.VolumeAttachment) {
		a.Finalizers = []string{foreign}
	}))
}

// TestDetachWithoutSecretGoesWell: what a driver does without a Secret is done.
func TestDetachWithoutSecretGoesWell(t *testing.T) {
	w := newWorld(t, Options{}, va(recorded, attached, going))
	w.works(kindAttachment, "va")
	bare := unpublishRequest()
	bare.Secrets = nil
	w.called(bare)
	w.attachment(va(recorded, attached, going, func(a *storagev1.VolumeAttachment) { a.Finalizers = []string{foreign} }))
	w.written("update volumeattachments")
}

// TestOldNodeIsNotLeft: while it may be attached under the old name of its node, it
// is not attached under the new one, and the record stays.
func TestOldNodeIsNotLeft(t *testing.T) {
	old := func(a *storagev1.VolumeAttachment) { a.Annotations[volume.AnnNodeID] = "id-old" }
	w := newWorld(t, Options{}, pv(), va(recorded, old), csiNode(), secret())
	w.driver.OnCall("ControllerUnpublishVolume", func(int, any) csitest.Action {
		return csitest.Action{Err: status.Error(codes.Unavailable, "gone")}
	})
	w.fails(kindAttachment, "va", "gone")
	left := unpublishRequest()
	left.NodeId = "id-old"
	w.called(left)
	w.attachment(va(recorded, old, failed("Unavailable: gone", ptr.To(int32(codes.Unavailable)))))
}

// TestOldNodeIsNotLeftWithoutSecret: the Secret goes between the two calls, and the driver does not detach without it:
// both are told, with the driver's code.
func TestOldNodeIsNotLeftWithoutSecret(t *testing.T) {
	old := func(a *storagev1.VolumeAttachment) { a.Annotations[volume.AnnNodeID] = "id-old" }
	w := newWorld(t, Options{}, pv(kept), va(recorded, old), csiNode(), secret())
	reads := 0
	w.client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		reads++
		return reads > 1, nil, apierrors.NewNotFound(corev1.Resource("secrets"), "s")
	})
	w.driver.OnCall("ControllerUnpublishVolume", func(int, any) csitest.Action {
		return csitest.Action{Err: status.Error(codes.Unauthenticated, "who are you")}
	})
	w.fails(kindAttachment, "va", "who are you")
	w.attachment(va(recorded, old, failed(`Unauthenticated: who are you; read secret ns/s: secrets "s" not found`,
		ptr.To(int32(codes.Unauthenticated)))))
}

// TestRefusedDetach says once what is missing.
func TestRefusedDetach(t *testing.T) {
	blank := func(a *storagev1.VolumeAttachment) { delete(a.Annotations, volume.AnnDetach) }
	w := newWorld(t, Options{}, va(recorded, blank, attached, going), csiNode())
	w.works(kindAttachment, "va")
	w.works(kindAttachment, "va")
	w.called()
	says := "volume pv is gone and attachment va does not say what to detach"
	w.attachment(va(recorded, blank, attached, going, stuck(says)))
	w.written("patch volumeattachments")
	w.told("Warning VolumeAttachment va FailedDetachVolume: " + says + " (1)")
}

// TestNeverAttached: an attachment for which the driver was never called goes
// without a call, and without the Secret.
func TestNeverAttached(t *testing.T) {
	ourFinalizer := func(a *storagev1.VolumeAttachment) { a.Finalizers = append(a.Finalizers, ours) }
	w := newWorld(t, Options{}, va(ourFinalizer, going))
	w.works(kindAttachment, "va")
	w.works(kindAttachment, "va")
	w.called()
	w.attachment(va(going))
	w.written("update volumeattachments")
}

// TestLettingGo: an attachment or a volume that is gone needs no letting go; any
// other refusal has it tried again.
func TestLettingGo(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"it is gone":         {apierrors.NewNotFound(corev1.Resource("any"), "any"), ""},
		"the API is not":     {errNotNow, "not now"},
		"somebody was first": {apierrors.NewConflict(corev1.Resource("any"), "any", errNotNow), "not now"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, pv(func(v *corev1.PersistentVolume) { v.Name = "free" }, dying, kept),
				va(recorded, attached, going), secret())
			w.refuses("update", "*", c.err)
			for kind, key := range map[string]string{kindAttachment: "va", kindVolume: "free"} {
				if _, err := w.reconcile(kind, key); (err == nil) != (c.says == "") ||
					err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s ends with %v", kind, err)
				}
			}
			w.called(unpublishRequest())
			w.attachment(va(recorded, attached, going))
		})
	}
}

// TestGoneMeanwhile: an attach whose volume object has gone does not happen, and
// one whose attachment has gone needs no status.
func TestGoneMeanwhile(t *testing.T) {
	gone := apierrors.NewNotFound(corev1.Resource("any"), "any")
	w := newWorld(t, Options{}, pv(), va(), csiNode(), secret())
	w.refuses("update", "persistentvolumes", gone)
	w.fails(kindAttachment, "va", "update volume pv")
	w.called()
	w = newWorld(t, Options{}, pv(kept), va(recorded), csiNode(), secret())
	w.refuses("patch", "volumeattachments", gone)
	w.works(kindAttachment, "va")
	w.called(publishRequest())
}

// TestDriverGoes between the plan and the call: the attachment stays as it is for
// the driver's return.
func TestDriverGoes(t *testing.T) {
	w := newWorld(t, Options{}, pv(), va(), csiNode(), secret())
	w.client.PrependReactor("update", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
		w.drivers.Remove(w.served)
		return false, nil, nil
	})
	w.fails(kindAttachment, "va", "driver d.example has gone")
	w.called()
	w.attachment(va(recorded))
	w.works(kindAttachment, "va")
	w.attachment(va(recorded))
}

// TestNoDriver: without its driver nothing is done with an attachment, and nothing
// is let go.
func TestNoDriver(t *testing.T) {
	for name, a := range map[string]*storagev1.VolumeAttachment{
		"to attach": va(), "to detach": va(recorded, attached, going),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, pv(), a, csiNode(), secret())
			w.drivers.Remove(w.served)
			w.works(kindAttachment, "va")
			w.works(kindAttachment, "none")
			if again := w.works(kindDriver, driverName); again != 0 {
				t.Errorf("the driver that is gone is asked after %s", again)
			}
			w.attachment(a)
			w.written()
		})
	}
}

// TestOthersAttachments: an attacher without a driver is a name, and no other one's
// attachments are marked by it.
func TestOthersAttachments(t *testing.T) {
	of := func(a *storagev1.VolumeAttachment) { a.Spec.Attacher = "e.example" }
	for _, dummy := range []string{"", "none.example"} {
		w := newWorld(t, Options{Dummy: dummy}, pv(), va(of), csiNode())
		w.works(kindAttachment, "va")
		w.attachment(va(of))
		w.written()
	}
	nameless := func(a *storagev1.VolumeAttachment) { a.Spec.Attacher = "" }
	w := newWorld(t, Options{}, pv(), va(nameless))
	w.works(kindAttachment, "va")
	w.attachment(va(nameless))
}

// TestDriverThatDoesNotAttach: its attachments are marked, and let go without a
// call; what the volume says is nobody's business then.
func TestDriverThatDoesNotAttach(t *testing.T) {
	config := csitest.Full()
	config.Controller = csi.ControllerCapabilities{}
	theirs := func(a *storagev1.VolumeAttachment) { a.Finalizers = append(a.Finalizers, ours) }
	w := newWorldWith(t, config, Options{}, va(),
		va(theirs, going, func(a *storagev1.VolumeAttachment) { a.Name = "old" }))
	w.works(kindAttachment, "va")
	w.works(kindAttachment, "old")
	w.attachment(va(func(a *storagev1.VolumeAttachment) { a.Status.Attached = true }))
	w.attachment(va(going, func(a *storagev1.VolumeAttachment) { a.Name = "old" }))
	w.called()
	w.written("patch volumeattachments", "update volumeattachments")
}

// TestAnotherOfItsName: an attachment that was made again under its name has
// another story; what came of the old one is not written to it.
func TestAnotherOfItsName(t *testing.T) {
	w := newWorld(t, Options{}, pv(kept), va(recorded), csiNode(), secret())
	another := va(func(a *storagev1.VolumeAttachment) { a.UID = "new" })
	if err := errors.Join(w.client.Tracker().Delete(attachments(), "", "va"),
		w.client.Tracker().Add(another)); err != nil {
		t.Fatal(err)
	}
	if err := w.fails(kindAttachment, "va", "patch attachment va"); !apierrors.IsConflict(errors.Unwrap(err)) {
		t.Errorf("ends with %v", err)
	}
	w.attachment(another)
}

// TestStatusIsCompleted: what says that it is attached in another way than the
// driver did now is written again.
func TestStatusIsCompleted(t *testing.T) {
	for name, change := range map[string]func(*storagev1.VolumeAttachment){
		"an error is there, too": failed("no", nil),
		"another device": func(a *storagev1.VolumeAttachment) {
			a.Status.AttachmentMetadata = map[string]string{"device": "/dev/old"}
		},
		"nothing": func(a *storagev1.VolumeAttachment) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, pv(kept), va(recorded, attached, change), csiNode(), secret())
			w.driver.OnCall("ListVolumes", listed())
			w.works(kindDriver, driverName)
			w.works(kindAttachment, "va")
			w.called(&csipb.ListVolumesRequest{MaxEntries: pageSize}, publishRequest())
			w.attachment(va(recorded, attached))
			want := []string{"patch volumeattachments"}
			if name == "nothing" {
				want = nil
			}
			w.written(want...)
			// The doubt has ended.
			w.works(kindAttachment, "va")
			w.called(&csipb.ListVolumesRequest{MaxEntries: pageSize}, publishRequest())
		})
	}
}

// TestStrangersFinalizers: who works with an old state of an object does not write
// it over what others have added since.
func TestStrangersFinalizers(t *testing.T) {
	w := newWorld(t, Options{}, pv(), va(), csiNode(), secret())
	theirs := pv(func(v *corev1.PersistentVolume) { v.Finalizers = append(v.Finalizers, "example.org/newer") })
	if _, err := w.client.CoreV1().PersistentVolumes().Update(t.Context(), theirs, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.fails(kindAttachment, "va", "update volume pv")
	w.volume(theirs)
	w.called()
	w.start(Options{})
	w.works(kindAttachment, "va")
	w.volume(pv(func(v *corev1.PersistentVolume) { v.Finalizers = append(theirs.Finalizers, ours) }))
	w.attachment(va(recorded, attached))
	w.called(publishRequest())
}
