package binder

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

func volumeNamed(name string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) { v.Name, v.UID = name, types.UID(name) }
}

// second is another claim for which the same volumes would do.
func second(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	return claim(append([]func(*corev1.PersistentVolumeClaim){in("ns", "c2", "c2")}, change...)...)
}

// choosy has no volume do for a claim.
func choosy(c *corev1.PersistentVolumeClaim) {
	c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "such"}}
}

func newer(c *corev1.PersistentVolumeClaim) { c.ResourceVersion = "1000" }

// linkedToSecond is a volume that the binder has chosen for the second claim.
func linkedToSecond(v *corev1.PersistentVolume) {
	linked(v)
	v.Spec.ClaimRef.Name, v.Spec.ClaimRef.UID, v.Spec.ClaimRef.ResourceVersion = "c2", "c2", "1000"
}

// TestEachItsOwn: as many claims are bound as there are volumes, each to one of its
// own, and the next one when there is one more.
func TestEachItsOwn(t *testing.T) {
	bubble(t, "two, and a third", func(t *testing.T) {
		a := kubetest.NewAPI(t, claim(), second(), claim(in("other", "c", "c3")), pv(), pv(volumeNamed("pv2")),
			class(byHand, volume.NoProvisioner))
		defer begin(a, controller.NewRequests())()
		owned(t, a, 2)
		a.Put(pv(volumeNamed("pv3")))
		synctest.Wait()
		owned(t, a, 3)
	})
}

// owned says that so many volumes have each a claim that has it.
func owned(t *testing.T, a *kubetest.API, want int) {
	t.Helper()
	all, err := a.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owners := map[types.UID]bool{}
	for _, v := range all.Items {
		ref := v.Spec.ClaimRef
		if ref == nil {
			t.Fatalf("%s is nobody's", v.Name)
		}
		owners[ref.UID] = true
		a.Has(claim(in(ref.Namespace, ref.Name, string(ref.UID)), chosen, bound,
			func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = v.Name }))
	}
	if len(owners) != want {
		t.Errorf("%d volumes have the owners %v", want, owners)
	}
}

// TestPutBack: a volume that was taken for a claim and has not become its own is
// offered to who found none meanwhile, at once where all went well and after a pause
// where a write failed.
func TestPutBack(t *testing.T) {
	mine := pv(volumeNamed("mine"), keptFor("ns", "c", ""))
	for name, c := range map[string]struct {
		before []runtime.Object
		fails  error
		pause  time.Duration
	}{
		"its write failed":          {nil, errors.New("not now"), offerPause},
		"its claim had another one": {[]runtime.Object{mine}, nil, 0},
	} {
		bubble(t, name, func(t *testing.T) {
			a := kubetest.NewAPI(t, append(c.before, pv(), second(choosy), class(byHand, volume.NoProvisioner))...)
			var claims *kube.Cache[*corev1.PersistentVolumeClaim]
			binder, stop := a.Run(func(env controller.Env) *controller.Controller {
				claims = env.Caches.Claims()
				return New(env, controller.NewRequests())
			})
			defer stop()
			a.Lock()
			a.Fate = func(n int, _ string) (bool, error) {
				if n > 1 {
					return true, nil
				}
				// Now the other claim would take it, and looks for it.
				claims.Wrote(second(newer))
				if _, err := binder.Reconcile(t.Context(),
					controller.Key{Kind: kindClaim, Namespace: "ns", Name: "c2"}); err != nil {
					t.Error(err)
				}
				if c.fails != nil {
					a.Drop(claim())
				}
				return c.fails == nil, c.fails
			}
			a.Unlock()
			a.Put(claim())
			synctest.Wait()
			if c.pause > 0 {
				<-time.After(c.pause - time.Millisecond)
				synctest.Wait()
				a.Has(pv())
				<-time.After(time.Millisecond)
				synctest.Wait()
			}
			a.Has(pv(linkedToSecond, phase(corev1.VolumeBound)))
		})
	}
}

// TestWatchIsBehind: what this process has written counts, although the watch has
// not told it: nothing is written twice, no volume goes to two claims, and the second
// gets the next one.
func TestWatchIsBehind(t *testing.T) {
	bubble(t, "silent", func(t *testing.T) {
		spare := pv(volumeNamed("spare"), func(v *corev1.PersistentVolume) { v.Spec.Capacity = storage("3Gi") })
		large := func(v *corev1.PersistentVolume) { volumeNamed("large")(v); v.Spec.Capacity = storage("4Gi") }
		a := kubetest.NewAPI(t, claim(), pv(), spare, pv(large), second(choosy), class(byHand, volume.NoProvisioner))
		a.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, watch.NewFake(), nil
		})
		var caches *kube.Caches
		binder, stop := a.Run(func(env controller.Env) *controller.Controller {
			caches = env.Caches
			return New(env, controller.NewRequests())
		})
		defer stop()
		a.Wrote(linkVolume, volumePhase, linkClaim, claimStatus)
		look := func(key controller.Key) {
			t.Helper()
			if _, err := binder.Reconcile(t.Context(), key); err != nil {
				t.Error(err)
			}
		}
		look(controller.Key{Kind: kindClaim, Namespace: "ns", Name: "c"})
		look(controller.Key{Kind: kindVolume, Name: "pv"})
		a.Wrote()
		a.Has(claim(chosen, bound), pv(linked, phase(corev1.VolumeBound)))

		// Another controller of the process keeps the volume for another claim.
		caches.Volumes().Wrote(pv(volumeNamed("spare"), keptFor("ns", "theirs", ""),
			func(v *corev1.PersistentVolume) { v.ResourceVersion = "1000" }))
		caches.Claims().Wrote(second(newer))
		// What was laid over the other claim is no version of it.
		if _, err := binder.Reconcile(t.Context(),
			controller.Key{Kind: kindClaim, Namespace: "ns", Name: "c2"}); !apierrors.IsConflict(err) {
			t.Error(err)
		}
		a.Has(spare, pv(large, linkedToSecond, phase(corev1.VolumeBound)))
	})
}
