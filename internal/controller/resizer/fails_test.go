package resizer

import (
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/volume"
)

var errNotNow = errors.New("not now")

// begun and its kind are the claim of a world after a step.
func begun(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	return resize.Begun(c, resource.MustParse("2Gi"), metav1.Now())
}

func refused(c *corev1.PersistentVolumeClaim, message string) *corev1.PersistentVolumeClaim {
	return resize.Refused(c, message, metav1.Now())
}

func handed(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	return resize.Handed(c, resource.MustParse("2Gi"), metav1.Now())
}

func larger(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	v = v.DeepCopy()
	v.Spec.Capacity = storage("2Gi")
	return v
}

// TestNotCalled: what would fail anyway is not asked of the driver, and the claim
// says why; it comes back.
func TestNotCalled(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)
		secret *corev1.Secret
		before func(*world)
		says   string
	}{
		"its Secret is missing": {nothing, otherSecret(), nil, `Unknown: read secret ns/s: secrets "s" not found`},
		"its access modes fit nothing": {func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
			v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadOnlyMany)
		}, secret(), nil, "Unknown: volume pv: access modes cannot be combined"},
		"its driver goes": {nothing, secret(), func(w *world) {
			w.client.PrependReactor("update", "persistentvolumeclaims",
				func(clienttesting.Action) (bool, runtime.Object, error) {
					w.drivers.Remove(w.served)
					return false, nil, nil
				})
		}, "Unknown: driver d.example has gone"},
	} {
		t.Run(name, func(t *testing.T) {
			claim, pv := bound(c.change)
			w := newWorld(t, grown(2*gib, true), claim, pv, c.secret)
			if c.before != nil {
				c.before(w)
			}
			w.fails("grow volume of claim ns/claim: ")
			w.called()
			w.are(refused(begun(claim), c.says), pv)
		})
	}
}

// TestFailure is told, and written once for as often as it comes; the call is made
// again for the same size, and a success takes it away.
func TestFailure(t *testing.T) {
	claim, pv := bound()
	answers := []error{
		status.Error(codes.Internal, "busy: value"), status.Error(codes.Internal, "busy: value"),
		status.Error(codes.Internal, "broken"),
	}
	w := newWorld(t, func() csitest.Action {
		if len(answers) == 0 {
			return grown(2*gib, true)()
		}
		err := answers[0]
		answers = answers[1:]
		return csitest.Action{Err: err}
	}, claim, pv, secret())
	w.quiet()
	// The driver quotes the Secret's value.
	w.fails("grow volume of claim ns/claim: rpc error: code = Internal desc = busy: ***")
	w.are(refused(begun(claim), "Internal: busy: ***"), pv)
	w.fails("busy")
	w.written("update persistentvolumeclaims", "update persistentvolumeclaims")
	w.fails("broken")
	w.are(refused(begun(claim), "Internal: broken"), pv)
	w.works()
	w.are(handed(begun(claim)), larger(pv))
	w.called(request(2*gib), request(2*gib), request(2*gib), request(2*gib))
	w.events("Normal PersistentVolumeClaim claim Resizing: volume pv grows from 1Gi to 2Gi (1)",
		"Warning PersistentVolumeClaim claim VolumeResizeFailed: the volume of claim claim did not grow: Internal: "+
			"busy: *** (2)",
		"Warning PersistentVolumeClaim claim VolumeResizeFailed: the volume of claim claim did not grow: "+
			"Internal: broken (1)",
		"Normal PersistentVolumeClaim claim FileSystemResizeRequired: claim claim has a larger volume; the node grows the "+
			"filesystem (1)")
	// Nothing that is there is written again.
	w.works()
	w.written("update persistentvolumeclaims", "update persistentvolumeclaims", "update persistentvolumeclaims",
		"update persistentvolumes", "update persistentvolumeclaims")
}

// TestWriteFails: a write that fails has the claim come back, and nothing that
// depends on it is done before; what was written is not forgotten, though no watch
// tells of it.
func TestWriteFails(t *testing.T) {
	never := func() csitest.Action { return csitest.Action{Err: status.Error(codes.OutOfRange, "never")} }
	no := func() csitest.Action { return csitest.Action{Err: status.Error(codes.Internal, "no")} }
	for name, c := range map[string]struct {
		resource string
		// fails is the number of such a write.
		fails  int
		answer func() csitest.Action
		says   string
		// calls are how many were made then, and when the next try has gone well;
		// none is that it cannot.
		calls, all     int
		begins, larger bool
	}{
		"what is begun": {
			"persistentvolumeclaims", 1, grown(2*gib, true), "update the status of claim ns/claim: not now", 0, 1, false, false,
		},
		"the volume's size": {
			"persistentvolumes", 1, grown(2*gib, true), "update volume pv: not now", 1, 2, true, false,
		},
		"the claim's size": {
			"persistentvolumeclaims", 2, grown(2*gib, true), "update the status of claim ns/claim: not now", 1, 1, true, true,
		},
		"why it did not grow": {
			"persistentvolumeclaims", 2, no, "update the status of claim ns/claim: not now", 1, 0, true, false,
		},
		"why it will never grow": {
			"persistentvolumeclaims", 2, never, "update the status of claim ns/claim: not now", 1, 0, true, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim, pv := bound()
			w := newWorld(t, c.answer, claim, pv, secret())
			w.quiet()
			n := 0
			w.client.PrependReactor("update", c.resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				n++
				return n == c.fails, nil, errNotNow
			})
			w.fails(c.says)
			w.called(slices.Repeat([]proto.Message{request(2 * gib)}, c.calls)...)
			wantClaim, wantVolume := claim, pv
			if c.begins {
				wantClaim = begun(claim)
			}
			if c.larger {
				wantVolume = larger(pv)
			}
			w.are(wantClaim, wantVolume)
			if c.all > 0 {
				w.works()
				w.are(handed(begun(claim)), larger(pv))
				w.called(slices.Repeat([]proto.Message{request(2 * gib)}, c.all)...)
			}
		})
	}
}

// TestOthersWrite: who works with an old state of an object does not write it over
// what others have changed since.
func TestOthersWrite(t *testing.T) {
	claim, pv := bound()
	theirs := pv.DeepCopy()
	theirs.Finalizers, theirs.ResourceVersion = append(theirs.Finalizers, "example.org/newer"), "newer"
	var w *world
	w = newWorld(t, func() csitest.Action {
		if err := w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), theirs,
			""); err != nil {
			t.Error(err)
		}
		return grown(2*gib, true)()
	}, claim, pv, secret())
	w.fails("update volume pv")
	w.are(begun(claim), theirs)
	w.driver.OnCall("ControllerExpandVolume", func(int, any) csitest.Action { return grown(2*gib, true)() })
	w.start()
	w.works()
	w.are(handed(begun(claim)), larger(theirs))
	w.called(request(2*gib), request(2*gib))
}

// TestImpossibleSizeAgain: the driver is not asked again during a pause, nor is
// anything written; another size begins another story.
func TestImpossibleSizeAgain(t *testing.T) {
	claim, pv := bound()
	w := newWorld(t, func() csitest.Action { return csitest.Action{Err: status.Error(codes.OutOfRange, "never")} },
		claim, pv, secret())
	for range 3 {
		if after := w.works(); after <= 0 || after > infeasiblePause {
			t.Errorf("looked at again after %s", after)
		}
	}
	w.called(request(2 * gib))
	w.written("update persistentvolumeclaims", "update persistentvolumeclaims")
	w.events("Normal PersistentVolumeClaim claim Resizing: volume pv grows from 1Gi to 2Gi (1)",
		"Warning PersistentVolumeClaim claim VolumeResizeFailed: the volume of claim claim did not grow: "+
			"OutOfRange: never (1)")
	size := resource.MustParse("2Gi")
	was := resize.Impossible(begun(claim), size, "OutOfRange: never", metav1.Now())
	smaller := was.DeepCopy()
	smaller.Spec.Resources.Requests = storage("1536Mi")
	if _, err := w.client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), smaller,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.sees(func(c *corev1.PersistentVolumeClaim) bool {
		return c.Spec.Resources.Requests.Storage().String() == "1536Mi"
	})
	w.works()
	w.called(request(2*gib), request(3*gib/2))
}

// TestTurn: half of a driver's places are one namespace's at most; who has to wait
// for one changes nothing, and other namespaces and drivers hold up nobody.
func TestTurn(t *testing.T) {
	lane := controller.Lane{Driver: driverName, Call: "expand", Namespace: "ns"}
	other, driver := lane, lane
	other.Namespace, driver.Driver = "other", "e.example"
	controls := csi.ControllerCapabilities{Expand: true, SingleNodeMultiWriter: true}
	for name, c := range map[string]struct {
		lane   controller.Lane
		calls  int
		can    csi.ControllerCapabilities
		change func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)
		waits  bool
	}{
		"its own namespace has all that it may have": {lane, places / 2, controls, nothing, true},
		"its own namespace has a little less":        {lane, places/2 - 1, controls, nothing, false},
		"another namespace has all that it may have": {other, places / 2, controls, nothing, false},
		"another driver is busy":                     {driver, places / 2, controls, nothing, false},
		"to go on waits as to begin does": {
			lane, places / 2, controls, func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { *c = *begun(c) },
			true,
		},
		"what the driver need not do is not held up": {lane, places / 2, csi.ControllerCapabilities{}, nothing, false},
		"nor is what it has done, for the node": {
			lane, places / 2, controls, func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) { *v = *larger(v) },
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := csitest.Full()
			config.Controller = c.can
			claim, pv := bound(c.change)
			w := newWorldWith(t, config, grown(2*gib, true), claim, pv, secret())
			w.register()
			for i := range c.calls {
				w.c.Turn(controller.Key{Kind: "claim", Namespace: c.lane.Namespace, Name: string(rune('a' + i))}, c.lane,
					func(volume.Because) {})
			}
			if after := w.works(); (after > 0) != c.waits || after > 10*time.Second {
				t.Errorf("looked at again after %s", after)
			}
			if c.waits {
				w.called()
				w.are(claim, pv)
				return
			}
			w.are(handed(begun(claim)), larger(pv))
		})
	}
}

func nothing(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {}

// TestGoneClaim: a claim that is not there is nobody's.
func TestGoneClaim(t *testing.T) {
	_, pv := bound()
	w := newWorld(t, grown(2*gib, true), pv, secret())
	if after := w.works(); after != 0 {
		t.Errorf("looked at again after %s", after)
	}
	w.called()
	w.written()
}

// TestModeIsNamed: a volume has a filesystem whether or not it names its mode.
func TestModeIsNamed(t *testing.T) {
	claim, pv := bound(func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
		v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem)
	})
	w := newWorld(t, grown(2*gib, true), claim, pv, secret())
	w.works()
	w.called(request(2 * gib))
}
