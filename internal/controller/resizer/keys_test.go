package resizer

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// bubble is a resizer in a bubble, whose driver cannot be called there.
type bubble struct {
	*world
	keys kubetest.Notes
}

// newBubble has the resizer do what it is told, and hear of what others do.
func newBubble(t *testing.T, objects ...runtime.Object) *bubble {
	w := &bubble{world: &world{t: t, client: kubetest.NewAPI(t, objects...), drivers: csi.NewSet()}}
	w.start()
	return w
}

func (w *bubble) put() {
	w.drivers.Put(&csi.Driver{Name: driverName, Controller: csi.ControllerCapabilities{Expand: true}})
}

// looks has it only note which claims it is to look at.
func (w *bubble) looks() {
	w.keys.Instead(w.c)
	w.run()
}

const key = "claim/ns/claim"

// TestClaimWakes: a claim is looked at for what somebody else changes of its size,
// and not for what the resizer writes while it works, which would defeat the pause
// between two tries.
func TestClaimWakes(t *testing.T) {
	began := func(c *corev1.PersistentVolumeClaim) {
		*c = *resize.Begun(c, resource.MustParse("2Gi"), metav1.Now())
	}
	state := func(s corev1.ClaimResourceStatus) func(c *corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			began(c)
			c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = s
		}
	}
	none := func(*corev1.PersistentVolumeClaim) {}
	for name, c := range map[string]struct {
		before, after func(*corev1.PersistentVolumeClaim)
		wakes         bool
	}{
		"nothing": {none, func(c *corev1.PersistentVolumeClaim) { c.Labels = nil }, false},
		"its wish": {
			none, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = storage("3Gi") }, true,
		},
		"its wish in other words": {
			none, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = storage("2048Mi") }, false,
		},
		"its size": {
			none, func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = storage("2Gi") }, true,
		},
		"its volume": {
			none, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "other" }, true,
		},
		"its phase": {
			none, func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }, true,
		},
		"another claim of its name": {none, func(c *corev1.PersistentVolumeClaim) { c.UID = "new" }, true},
		"the resizer has begun":     {none, began, false},
		"the driver will never":     {began, state(corev1.PersistentVolumeClaimControllerResizeInfeasible), false},
		"the driver has said no": {
			began, func(c *corev1.PersistentVolumeClaim) { *c = *resize.Refused(c, "no", metav1.Now()) }, false,
		},
		"the node goes on": {began, state(corev1.PersistentVolumeClaimNodeResizePending), false},
		"the node cannot": {
			state(corev1.PersistentVolumeClaimNodeResizeInProgress), state(corev1.PersistentVolumeClaimNodeResizeInfeasible),
			true,
		},
		"the node could not, and says so": {
			state(corev1.PersistentVolumeClaimNodeResizeInfeasible),
			func(c *corev1.PersistentVolumeClaim) { *c = *resize.Refused(c, "no", metav1.Now()) }, false,
		},
		"the node is done": {
			state(corev1.PersistentVolumeClaimNodeResizeInProgress),
			func(c *corev1.PersistentVolumeClaim) { c.Status.AllocatedResourceStatuses = nil }, true,
		},
		"somebody gives up what was begun": {
			began, func(c *corev1.PersistentVolumeClaim) { c.Status.AllocatedResourceStatuses = nil }, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim, pv := bound(func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.before(claim) })
				w := newBubble(t, claim, pv)
				w.looks()
				w.keys.Since(t, key)
				after := claim.DeepCopy()
				c.after(after)
				w.replace(claim, after)
				if c.wakes {
					w.keys.Since(t, key)
				} else {
					w.keys.Since(t)
				}
			})
		})
	}
}

// replace writes a claim, or makes it anew if it is another one of its name.
func (w *bubble) replace(before, after *corev1.PersistentVolumeClaim) {
	w.t.Helper()
	if after.UID != before.UID {
		w.client.Drop(before)
		w.keys.Since(w.t)
	}
	w.client.Put(after)
}

// TestOthersWake: a claim that waits for its volume to name it, or for a driver, is
// looked at when that comes; what else happens to a volume changes nothing.
func TestOthersWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim, pv := bound()
		free := pv.DeepCopy()
		free.Spec.ClaimRef = nil
		w := newBubble(t, claim, free)
		w.looks()
		w.keys.Since(t, key)
		for _, c := range []struct {
			volume *corev1.PersistentVolume
			wakes  bool
		}{{pv, true}, {pv, false}, {free, false}, {pv, true}} {
			w.client.Put(c.volume)
			if c.wakes {
				w.keys.Since(t, key)
			} else {
				w.keys.Since(t)
			}
		}
		w.client.Drop(pv)
		w.keys.Since(t)
		w.client.Put(pv)
		w.keys.Since(t, key)
		w.put()
		w.keys.Since(t, key)
	})
}

// TestLongWait: who waits for a turn for long is told, and nothing is begun.
func TestLongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim, pv := bound()
		w := newBubble(t, claim, pv)
		w.put()
		lane := controller.Lane{Driver: driverName, Call: "expand", Namespace: "ns"}
		for i := range places / 2 {
			w.c.Turn(controller.Key{Kind: "claim", Namespace: "ns", Name: string(rune('a' + i))}, lane, func(volume.Because) {})
		}
		first := w.works()
		synctest.Wait()
		w.events()
		<-time.After(first)
		if again := w.works(); again <= first {
			t.Errorf("looked at again after %s, before after %s", again, first)
		}
		w.events("Warning PersistentVolumeClaim claim DriverBusy: driver d.example works on as many calls to expand " +
			"volumes as may be under way at once; this one waits for its turn (1)")
		w.are(claim, pv)
	})
}

// TestImpossibleSizeIsDue: when the pause is over, a size that was refused for ever
// is asked for again, as often as it takes to begin.
func TestImpossibleSizeIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim, pv := bound()
		never := resize.Impossible(claim, resource.MustParse("2Gi"), "OutOfRange: never", metav1.Now())
		w := newBubble(t, never, pv)
		w.put()
		w.client.PrependReactor("update", "*",
			func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errNotNow })
		for range 2 {
			if again := w.works(); again != infeasiblePause {
				t.Errorf("looked at again after %s", again)
			}
		}
		w.written()
		<-time.After(infeasiblePause)
		w.fails("update the status of claim ns/claim: not now")
		w.fails("update the status of claim ns/claim: not now")
		w.are(never, pv)
	})
}

// TestComesBack ever later while it cannot be written.
func TestComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim, pv := bound()
		w := newBubble(t, claim, pv)
		var pauses []time.Duration
		var last time.Time
		w.client.PrependReactor("update", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			pauses = append(pauses, time.Since(last))
			last = time.Now()
			return true, nil, errNotNow
		})
		w.run()
		synctest.Wait()
		last = time.Now()
		w.put()
		<-time.After(3 * time.Second)
		synctest.Wait()
		if want := []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 *
			time.Millisecond}; !slices.Equal(pauses, want) {
			t.Errorf("pauses between the tries: %v", pauses)
		}
	})
}
