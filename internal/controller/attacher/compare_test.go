package attacher

import (
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
)

// listed is a driver's answer to what it has attached.
func listed(pairs ...string) func(int, any) csitest.Action {
	r := &csipb.ListVolumesResponse{}
	for i := 0; i < len(pairs); i += 2 {
		r.Entries = append(r.Entries, &csipb.ListVolumesResponse_Entry{
			Volume: &csipb.Volume{VolumeId: pairs[i]},
			Status: &csipb.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{pairs[i+1]}},
		})
	}
	return func(int, any) csitest.Action { return csitest.Action{Answer: r} }
}

// TestDriverForgot: what the driver does not know any more is attached again.
func TestDriverForgot(t *testing.T) {
	w := newWorld(t, Options{ReconcileSync: time.Hour}, pv(), va(recorded, attached), csiNode(), node(), secret())
	w.driver.OnCall("ListVolumes", listed())
	list := &csipb.ListVolumesRequest{MaxEntries: pageSize}
	w.works(kindAttachment, "va")
	w.called()
	if again := w.works(kindDriver, driverName); again != time.Hour {
		t.Errorf("asked again after %s", again)
	}
	w.works(kindAttachment, "va")
	w.works(kindAttachment, "va")
	w.called(list, publishRequest())
	w.attachment(va(recorded, attached))
	w.told("Warning VolumeAttachment va AttachmentVanished: driver d.example says that volume pv is not attached to " +
		"node n1: it is attached again (1)")
}

// TestDriverHasMore: what is attached for no attachment is detached when it is
// seen twice; what an attachment asks for stays. Until it is detached, its volume's
// object is kept.
func TestDriverHasMore(t *testing.T) {
	w := newWorld(t, Options{}, pv(), other(kept), va(recorded, attached), csiNode(), node(), secret())
	w.driver.OnCall("ListVolumes", listed("h", "id-n1", "h2", "id-n1", "foreign", "id-n1", "h2", "id-foreign"))
	w.driver.OnCall("ControllerUnpublishVolume", func(n int, _ any) csitest.Action {
		if n == 1 {
			return csitest.Action{Err: status.Error(codes.Internal, "busy")}
		}
		return csitest.Action{Answer: &csipb.ControllerUnpublishVolumeResponse{}}
	})
	for range 2 {
		if again := w.works(kindDriver, driverName); again != time.Minute {
			t.Errorf("asked again after %s", again)
		}
	}
	unasked := attach.NameOf(driverName, "h2", "n1")
	w.fails(kindAttachment, unasked, "busy")
	// It is no news while it is being detached.
	w.works(kindDriver, driverName)
	w.works(kindVolume, "pv-2")
	w.volume(other(kept))
	w.works(kindAttachment, unasked)
	w.works(kindAttachment, unasked)
	w.works(kindVolume, "pv-2")
	w.volume(other())
	unpublish := unpublishRequest()
	unpublish.VolumeId = "h2"
	list := &csipb.ListVolumesRequest{MaxEntries: pageSize}
	w.called(list, list, unpublish, list, unpublish)
	w.attachment(va(recorded, attached))
	w.told("Warning PersistentVolume pv-2 UnaskedAttachment: driver d.example says that volume pv-2 is attached to node "+
		"n1, which nobody asked for: it is detached (1)",
		"Warning VolumeAttachment "+unasked+
			" FailedDetachVolume: volume pv-2 is not detached from node n1: Internal: busy (1)")
}

// other is a second volume, which is being deleted.
func other(change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := pv(dying, func(v *corev1.PersistentVolume) { v.Name, v.UID, v.Spec.CSI.VolumeHandle = "pv-2", "pv-2", "h2" })
	for _, f := range change {
		f(v)
	}
	return v
}

// TestNotTouched: what is not this driver's, or may be on its way, is neither
// attached again nor detached.
func TestNotTouched(t *testing.T) {
	elsewhere := func(a *storagev1.VolumeAttachment) { a.Spec.Attacher = "e.example" }
	theirs := func(v *corev1.PersistentVolume) { v.Spec.CSI.Driver = "e.example" }
	using := node()
	using.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName(driverName, "h"))}
	bare := pv(func(v *corev1.PersistentVolume) { v.Spec.CSI = nil })
	last := func(a *storagev1.VolumeAttachment) {
		a.Name, a.UID, a.Spec.Source.PersistentVolumeName = "last", "last", ptr.To("none")
	}
	for name, c := range map[string]struct {
		says    []string
		objects []runtime.Object
	}{
		"another driver's attachment":        {nil, []runtime.Object{pv(), va(recorded, attached, elsewhere), csiNode()}},
		"another driver's volume":            {[]string{"h", "id-n1"}, []runtime.Object{pv(theirs), csiNode()}},
		"a volume of no driver":              {[]string{"h", "id-n1"}, []runtime.Object{bare, csiNode()}},
		"a node where another driver runs":   {[]string{"h", "wrong"}, []runtime.Object{pv(), csiNode()}},
		"a volume that the node says it has": {[]string{"h", "id-n1"}, []runtime.Object{pv(), csiNode(), using}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, append(c.objects, secret(), va(last))...)
			w.driver.OnCall("ListVolumes", listed(c.says...))
			for range 3 {
				w.works(kindDriver, driverName)
				w.works(kindAttachment, "va")
				w.works(kindAttachment, attach.NameOf(driverName, "h", "n1"))
			}
			list := &csipb.ListVolumesRequest{MaxEntries: pageSize}
			w.called(list, list, list)
			// Nobody hears anything before the first thing that is worth to be told.
			w.works(kindAttachment, "last")
			w.told("Warning VolumeAttachment last VolumeMissing: volume none does not exist or is no CSI volume (1)")
			w.written("patch volumeattachments")
		})
	}
}

// TestNodeWithoutObject: a node is known by its registration; that its Node object
// is gone, so that nothing there can use the volume, does not keep it attached.
func TestNodeWithoutObject(t *testing.T) {
	w := newWorld(t, Options{}, pv(), csiNode(), secret())
	w.driver.OnCall("ListVolumes", listed("h", "id-n1"))
	w.works(kindDriver, driverName)
	w.works(kindDriver, driverName)
	w.works(kindAttachment, attach.NameOf(driverName, "h", "n1"))
	list := &csipb.ListVolumesRequest{MaxEntries: pageSize}
	w.called(list, list, unpublishRequest())
}

// TestAttachedMeanwhile: what was attached after the driver was asked may be
// missing in its answer.
func TestAttachedMeanwhile(t *testing.T) {
	w := newWorld(t, Options{}, pv(), va(), csiNode(), secret())
	w.driver.OnCall("ListVolumes", func(int, any) csitest.Action {
		w.works(kindAttachment, "va")
		return listed()(0, nil)
	})
	w.works(kindDriver, driverName)
	w.works(kindAttachment, "va")
	w.called(&csipb.ListVolumesRequest{MaxEntries: pageSize}, publishRequest())
}

// TestNotInARow: what is attached for no attachment, and then not, and then again,
// is only suspected again.
func TestNotInARow(t *testing.T) {
	w := newWorld(t, Options{}, pv(), csiNode(), secret())
	for _, says := range [][]string{{"h", "id-n1"}, nil, {"h", "id-n1"}} {
		w.driver.OnCall("ListVolumes", listed(says...))
		w.works(kindDriver, driverName)
	}
	w.works(kindAttachment, attach.NameOf(driverName, "h", "n1"))
	list := &csipb.ListVolumesRequest{MaxEntries: pageSize}
	w.called(list, list, list)
}

// TestPages: all pages count, however few volumes a driver puts on one.
func TestPages(t *testing.T) {
	w := newWorld(t, Options{}, pv(), other(), va(recorded, attached), csiNode(), secret())
	w.driver.OnCall("ListVolumes", func(n int, _ any) csitest.Action {
		next := listed([][]string{{"h", "id-n1"}, {"h2", "id-n1"}, nil}[(n-1)%3]...)(0, nil)
		next.Answer.(*csipb.ListVolumesResponse).NextToken = []string{"two", "three", ""}[(n-1)%3]
		return next
	})
	w.works(kindDriver, driverName)
	w.works(kindDriver, driverName)
	w.works(kindAttachment, "va")
	w.works(kindAttachment, attach.NameOf(driverName, "h2", "n1"))
	one, two, three := &csipb.ListVolumesRequest{MaxEntries: pageSize},
		&csipb.ListVolumesRequest{MaxEntries: pageSize, StartingToken: "two"},
		&csipb.ListVolumesRequest{MaxEntries: pageSize, StartingToken: "three"}
	unpublish := unpublishRequest()
	unpublish.VolumeId = "h2"
	w.called(one, two, three, one, two, three, unpublish)
}

// TestHalfAnAnswer: what a driver says before it fails, or of a list without an end,
// is no answer; nothing is attached again for what is missing, and it is asked again.
func TestHalfAnAnswer(t *testing.T) {
	for name, second := range map[string]csitest.Action{
		"it fails":            {Err: status.Error(codes.Internal, "broken")},
		"the list has no end": {Answer: &csipb.ListVolumesResponse{NextToken: "two"}},
		"it breaks its answer": {Answer: &csipb.ListVolumesResponse{
			Entries: []*csipb.ListVolumesResponse_Entry{{Volume: &csipb.Volume{VolumeId: "a\nb"}}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, pv(), other(), va(recorded, attached), csiNode(), secret())
			w.driver.OnCall("ListVolumes", func(n int, r any) csitest.Action {
				if r.(*csipb.ListVolumesRequest).GetStartingToken() == "two" {
					return second
				}
				first := listed("h2", "id-n1")(0, nil)
				first.Answer.(*csipb.ListVolumesResponse).NextToken = "two"
				return first
			})
			for range 2 {
				if again := w.works(kindDriver, driverName); again != time.Minute {
					t.Errorf("asked again after %s", again)
				}
			}
			w.works(kindAttachment, "va")
			w.works(kindAttachment, attach.NameOf(driverName, "h2", "n1"))
			one, two := &csipb.ListVolumesRequest{MaxEntries: pageSize},
				&csipb.ListVolumesRequest{MaxEntries: pageSize, StartingToken: "two"}
			w.called(one, two, one, two)
			w.written()
		})
	}
}

// TestDriversThatCannotTell are not asked what they have attached; one whose volumes
// need no attaching may say of nodes what it likes, until that changes.
func TestDriversThatCannotTell(t *testing.T) {
	all := csitest.Full().Controller
	without := func(change func(*csi.ControllerCapabilities)) csi.ControllerCapabilities {
		c := all
		change(&c)
		return c
	}
	required := func(is *bool) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: is},
		}
	}
	for name, c := range map[string]struct {
		can     csi.ControllerCapabilities
		object  *storagev1.CSIDriver
		asked   bool
		comesAt time.Duration
	}{
		"it attaches nothing": {
			without(func(c *csi.ControllerCapabilities) { c.PublishUnpublish = false }), required(nil), false, 0,
		},
		"it lists no volumes": {
			without(func(c *csi.ControllerCapabilities) { c.ListVolumes = false }), required(nil), false, 0,
		},
		"it does not list nodes": {
			without(func(c *csi.ControllerCapabilities) { c.ListVolumesPublishedNodes = false }), required(nil), false, 0,
		},
		"nothing is to be known":  {all, required(ptr.To(false)), false, time.Minute},
		"its object does not say": {all, required(nil), true, time.Minute},
		"its object says so":      {all, required(ptr.To(true)), true, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			config := csitest.Full()
			config.Controller = c.can
			w := newWorldWith(t, config, Options{}, pv(), va(recorded, attached), csiNode(), c.object)
			w.driver.OnCall("ListVolumes", listed())
			if again := w.works(kindDriver, driverName); again != c.comesAt {
				t.Errorf("looked at again after %s", again)
			}
			if asked := len(w.driver.Calls()) > 0; asked != c.asked {
				t.Errorf("asked: %v", asked)
			}
		})
	}
}
