package resizer

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// looks is a resizer that only records which keys it would reconcile, and that receives the changes of others.
type looks struct {
	client  *kubetest.API
	drivers *csi.Set
	keys    kubetest.Notes
}

func newLooks(t *testing.T, objects ...runtime.Object) *looks {
	l := &looks{client: kubetest.NewAPI(t, objects...), drivers: csi.NewSet()}
	p := l.client.Begin(func(env controller.Env) *controller.Controller { return New(env, l.drivers) })
	l.keys.Instead(p.Controller)
	p.Work()
	return l
}

const key = "claim/ns/claim"

// TestClaimWakes: a claim is reconciled when another client changes its size, but not after the resizer's own writes,
// which would defeat the pause between two tries.
func TestClaimWakes(t *testing.T) {
	began := func(c *corev1.PersistentVolumeClaim) {
		*c = *resize.Started(c, resource.MustParse("2Gi"), metav1.Now())
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
				claim := claim(t)
				c.before(claim)
				w := newLooks(t, claim, pv(t, ""))
				w.keys.Since(t, key)
				after := claim.DeepCopy()
				c.after(after)
				if after.UID != claim.UID {
					w.client.Drop(claim)
					w.keys.Since(t)
				}
				w.client.Put(after)
				if c.wakes {
					w.keys.Since(t, key)
				} else {
					w.keys.Since(t)
				}
			})
		})
	}
}

// TestOthersWake: a claim that waits for its volume's claimRef, or for a driver, is reconciled when that appears; other
// changes of a volume have no effect.
func TestOthersWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pv, free := pv(t, ""), pv(t, "unclaimed")
		w := newLooks(t, claim(t), free)
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
		w.drivers.Put(&csi.Driver{Name: driverName})
		w.keys.Since(t, key)
	})
}
