package resizer

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// looks is a resizer that only notes which claims it is to look at. It runs in a
// bubble.
func looks(t *testing.T, objects ...runtime.Object) (*fake.Clientset, *csi.Set, *kubetest.Notes) {
	client, drivers, notes := kubetest.NewClient(t, objects...), csi.NewSet(), &kubetest.Notes{}
	ctx, cancel := context.WithCancel(t.Context())
	caches := kube.NewCaches(client)
	c := New(controller.Env{Client: client, Caches: caches, Events: kube.NewRecorder(ctx, client, "resizer"), Log: slog.New(slog.DiscardHandler)}, drivers)
	c.Reconcile = func(_ context.Context, key controller.Key) (controller.Result, error) {
		notes.Add(key.String())
		return controller.Result{}, nil
	}
	followed := kubetest.Follow(t, client)
	if err := caches.Start(ctx); err != nil {
		t.Fatal(err)
	}
	followed()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return client, drivers, notes
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
		"nothing":                          {none, func(c *corev1.PersistentVolumeClaim) { c.Labels = nil }, false},
		"its wish":                         {none, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = storage("3Gi") }, true},
		"its wish in other words":          {none, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = storage("2048Mi") }, false},
		"its size":                         {none, func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = storage("2Gi") }, true},
		"its volume":                       {none, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "other" }, true},
		"its phase":                        {none, func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }, true},
		"another claim of its name":        {none, func(c *corev1.PersistentVolumeClaim) { c.UID = "new" }, true},
		"the resizer has begun":            {none, began, false},
		"the driver will never":            {began, state(corev1.PersistentVolumeClaimControllerResizeInfeasible), false},
		"the driver has said no":           {began, func(c *corev1.PersistentVolumeClaim) { *c = *resize.Refused(c, "no", metav1.Now()) }, false},
		"the node goes on":                 {began, state(corev1.PersistentVolumeClaimNodeResizePending), false},
		"the node cannot":                  {state(corev1.PersistentVolumeClaimNodeResizeInProgress), state(corev1.PersistentVolumeClaimNodeResizeInfeasible), true},
		"the node could not, and says so":  {state(corev1.PersistentVolumeClaimNodeResizeInfeasible), func(c *corev1.PersistentVolumeClaim) { *c = *resize.Refused(c, "no", metav1.Now()) }, false},
		"the node is done":                 {state(corev1.PersistentVolumeClaimNodeResizeInProgress), func(c *corev1.PersistentVolumeClaim) { c.Status.AllocatedResourceStatuses = nil }, true},
		"somebody gives up what was begun": {began, func(c *corev1.PersistentVolumeClaim) { c.Status.AllocatedResourceStatuses = nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim, pv := bound(func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.before(claim) })
				client, _, notes := looks(t, claim, pv)
				notes.Since(t, key)
				after := claim.DeepCopy()
				c.after(after)
				claims := client.CoreV1().PersistentVolumeClaims("ns")
				if after.UID != claim.UID {
					if err := claims.Delete(t.Context(), "claim", metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
					notes.Since(t)
					if _, err := claims.Create(t.Context(), after, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				} else if _, err := claims.Update(t.Context(), after, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				if c.wakes {
					notes.Since(t, key)
				} else {
					notes.Since(t)
				}
			})
		})
	}
}

// TestOthersWake: a claim that waits for its volume to name it, or for a driver, is
// looked at when that comes; what else happens to a volume changes nothing.
func TestOthersWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim, pv := bound()
		free := pv.DeepCopy()
		free.Spec.ClaimRef = nil
		client, drivers, notes := looks(t, claim, free)
		notes.Since(t, key)
		volumes := client.CoreV1().PersistentVolumes()
		for _, c := range []struct {
			volume *corev1.PersistentVolume
			wakes  bool
		}{{pv, true}, {pv, false}, {free, false}, {pv, true}} {
			if _, err := volumes.Update(t.Context(), c.volume, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if c.wakes {
				notes.Since(t, key)
			} else {
				notes.Since(t)
			}
		}
		if err := volumes.Delete(t.Context(), "pv", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		notes.Since(t)
		if _, err := volumes.Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		notes.Since(t, key)
		drivers.Put(&csi.Driver{Name: driverName})
		notes.Since(t, key)
	})
}
