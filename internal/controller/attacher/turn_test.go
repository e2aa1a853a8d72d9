package attacher

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// busy has so many calls be under way in a lane.
func busy(c *controller.Controller, calls int, lane controller.Lane) {
	for i := range calls {
		c.Turn(controller.Key{Kind: kindAttachment, Name: fmt.Sprint(lane, i)}, lane, func(volume.Because) {})
	}
}

// TestTurn: half of a driver's places to attach, and half of those to detach, are
// one namespace's at most; who has to wait for one is not called for, and calls of
// other kinds, namespaces and drivers hold up nobody.
func TestTurn(t *testing.T) {
	attach := controller.Lane{Driver: driverName, Call: "attach", Namespace: "ns"}
	detach := controller.Lane{Driver: driverName, Call: "detach", Namespace: "ns"}
	for name, c := range map[string]struct {
		calls           int
		lane            controller.Lane
		attaches, waits bool
	}{
		"its own namespace attaches as much as it may": {places / 2, attach, true, true},
		"its own namespace attaches a little less":     {places/2 - 1, attach, true, false},
		"another namespace attaches": {
			places / 2, controller.Lane{Driver: driverName, Call: "attach", Namespace: "other"}, true, false,
		},
		"another driver attaches": {
			places / 2, controller.Lane{Driver: "e.example", Call: "attach", Namespace: "ns"}, true, false,
		},
		"its own namespace detaches":    {places / 2, detach, true, false},
		"to detach while others detach": {places / 2, detach, false, true},
		"to detach while others attach": {places / 2, attach, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := va()
			if !c.attaches {
				a = va(recorded, attached, going)
			}
			w := newWorld(t, Options{}, pv(), a, csiNode(), secret())
			busy(w.c, c.calls, c.lane)
			if again := w.works(kindAttachment, "va"); (again > 0) != c.waits {
				t.Errorf("looked at again after %s", again)
			}
			if called := len(w.driver.Calls()) > 0; called == c.waits {
				t.Errorf("the driver is called: %v", called)
			}
			if c.waits {
				w.attachment(a)
				w.written()
			}
		})
	}
}

// TestPlaceIsTheAttachments: the place that a call has is given back when the work on
// its attachment ends, so it is this attachment's and no other one's.
func TestPlaceIsTheAttachments(t *testing.T) {
	w := newWorld(t, Options{}, pv(), va(), csiNode(), secret())
	lane := controller.Lane{Driver: driverName, Call: "attach", Namespace: "ns"}
	busy(w.c, places/2-1, lane)
	w.works(kindAttachment, "va")
	for name, waits := range map[string]bool{"va": false, "va-2": true} {
		if pause := w.c.Turn(controller.Key{Kind: kindAttachment, Name: name}, lane,
			func(volume.Because) {}); (pause > 0) != waits {
			t.Errorf("attachment %s waits for %s", name, pause)
		}
	}
}

// TestNothingToCall needs no turn: what is refused, marked or there already goes on
// while a driver hangs.
func TestNothingToCall(t *testing.T) {
	w := newWorld(t, Options{}, va(), secret())
	busy(w.c, places, controller.Lane{Driver: driverName, Call: "attach"})
	if again := w.works(kindAttachment, "va"); again != 0 {
		t.Errorf("looked at again after %s", again)
	}
	w.attachment(va(failed("volume pv does not exist or is no CSI volume", nil)))
}

// TestLongWait: who waits for a turn for long is told, and that it is no error.
func TestLongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, drivers := kubetest.NewAPI(t, pv(), va(), csiNode()), csi.NewSet()
		drivers.Put(&csi.Driver{Name: driverName, Controller: csi.ControllerCapabilities{PublishUnpublish: true}})
		c := client.Begin(func(env controller.Env) *controller.Controller {
			return New(env, Options{Drivers: drivers})
		}).Controller
		busy(c, places/2, controller.Lane{Driver: driverName, Call: "attach", Namespace: "ns"})
		w := &world{t: t, client: client, c: c}
		first := w.works(kindAttachment, "va")
		synctest.Wait()
		w.told()
		<-time.After(first)
		if again := w.works(kindAttachment, "va"); again <= first {
			t.Errorf("looked at again after %s, before after %s", again, first)
		}
		w.told("Warning VolumeAttachment va DriverBusy: driver d.example works on as many calls to attach volumes as may " +
			"be under way at once; this one waits for its turn (1)")
		w.attachment(va())
	})
}

// TestInline: a volume that has no object is attached and detached by what its
// attachment says.
func TestInline(t *testing.T) {
	w := newWorld(t, Options{}, va(inline), csiNode(), secret())
	w.works(kindAttachment, "va")
	w.called(publishRequest())
	w.attachment(va(inline, recorded, attached))
	w.written("update volumeattachments", "patch volumeattachments")

	w = newWorld(t, Options{}, va(inline, recorded, attached, going), secret())
	w.works(kindAttachment, "va")
	w.called(unpublishRequest())
	w.attachment(va(inline, recorded, attached, going, func(a *storagev1.VolumeAttachment) {
		a.Finalizers = []string{foreign}
	}))
}
