package protection_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller/protection"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const foreign = "example.org/foreign"

// world is one in which the controller works.
type world struct{ *kubetest.World }

func inWorld(t *testing.T, play func(*world), objects ...runtime.Object) {
	t.Helper()
	kubetest.InWorld(t, protection.New, func(w *kubetest.World) { play(&world{w}) }, objects...)
}

// claim compares a whole claim with what is wanted.
func (w *world) claim(want *corev1.PersistentVolumeClaim) {
	w.Helper()
	w.Users.Is(want, cmpopts.IgnoreFields(metav1.ObjectMeta{}, "DeletionTimestamp"))
}

// volume compares a whole volume object with what is wanted.
func (w *world) volume(want *corev1.PersistentVolume) {
	w.Helper()
	w.Users.Is(want, cmpopts.IgnoreFields(metav1.ObjectMeta{}, "DeletionTimestamp"))
}

func claim(namespace, name string, finalizers ...string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: "c", Labels: map[string]string{"a": "b"}, Finalizers: finalizers,
	}}
	c.Spec.VolumeName, c.Status.Phase = "pv", corev1.ClaimBound
	return c
}

func pv(phase corev1.PersistentVolumePhase, finalizers ...string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "v", Labels: map[string]string{"a": "b"}, Finalizers: finalizers},
	}
	v.Spec.CSI, v.Status.Phase = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}, phase
	return v
}

func pod(namespace, name, node, claim string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	return p
}

// TestGetsIt: what comes without its protection gets it, and keeps what it has.
func TestGetsIt(t *testing.T) {
	inWorld(t, func(w *world) {
		w.claim(claim("ns", "old", foreign, volume.FinalizerClaimProtection))
		w.volume(pv(corev1.VolumeAvailable, foreign, volume.FinalizerVolumeProtection))
		w.Users.Put(claim("ns", "new"))
		kubetest.Pass(time.Second)
		w.claim(claim("ns", "new", volume.FinalizerClaimProtection))
		kubetest.Change(w.Users, w.Claims("ns"), "old", func(c *corev1.PersistentVolumeClaim) {
			c.Finalizers = []string{foreign}
		})
		w.claim(claim("ns", "old", foreign, volume.FinalizerClaimProtection))
		kubetest.Change(w.Users, w.Volumes(), "pv", func(v *corev1.PersistentVolume) { v.Finalizers = nil })
		w.volume(pv(corev1.VolumeAvailable, volume.FinalizerVolumeProtection))
	}, claim("ns", "old", foreign), pv(corev1.VolumeAvailable, foreign))
}

// TestClaimInUse: a claim that is deleted stays whole while Pods of its namespace
// with a node use it, and loses its protection, and nothing else, when the last of
// them is gone.
func TestClaimInUse(t *testing.T) {
	kept := claim("ns", "a", foreign, volume.FinalizerClaimProtection)
	inWorld(t, func(w *world) {
		kubetest.Remove(w.Users, w.Claims("ns"), "a")
		w.claim(kept)
		kubetest.Remove(w.Users, w.Users.CoreV1().Pods("ns"), "p")
		w.claim(kept)
		kubetest.Remove(w.Users, w.Users.CoreV1().Pods("ns"), "q")
		w.claim(claim("ns", "a", foreign))
		kubetest.Remove(w.Users, w.Claims("other"), "a")
		w.claim(claim("other", "a", volume.FinalizerClaimProtection))
		if got := kubetest.Writes(w.Own); !slices.Equal(got, []string{"update persistentvolumeclaims a"}) {
			w.Errorf("writes: %q", got)
		}
	}, kept, claim("other", "a", volume.FinalizerClaimProtection), pod("ns", "p", "n1", "a"), pod("ns", "q", "n2", "a"),
		pod("ns", "waits", "", "a"),
		pod("ns", "r", "n1", "b"), pod("other", "p", "n1", "a"))
}

// TestPodThatIsNotSeenYet: the API server is asked for Pods of which the cache has
// not heard, and for them alone: one answer is for one namespace.
func TestPodThatIsNotSeenYet(t *testing.T) {
	inWorld(t, func(w *world) {
		late := []*corev1.Pod{pod("ns", "p", "n1", "a"), pod("ns", "q", "n1", "other")}
		w.Own.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			for _, p := range late {
				w.Users.Put(p)
			}
			late = nil
			return false, nil, nil
		})
		kubetest.Remove(w.Users, w.Claims("ns"), "a")
		w.claim(claim("ns", "a", foreign, volume.FinalizerClaimProtection))
		kubetest.Remove(w.Users, w.Claims("elsewhere"), "a")
		w.claim(claim("elsewhere", "a", foreign))
		kubetest.Remove(w.Users, w.Users.CoreV1().Pods("ns"), "p")
		w.claim(claim("ns", "a", foreign))
	}, claim("ns", "a", foreign, volume.FinalizerClaimProtection),
		claim("elsewhere", "a", foreign, volume.FinalizerClaimProtection))
}

// TestManyAtOnce: of claims that are deleted at the same moment, and share an answer
// of the API server, each gets its own part of that.
func TestManyAtOnce(t *testing.T) {
	const many = 50
	objects := []runtime.Object{claim("ns", "used", volume.FinalizerClaimProtection), pod("ns", "p", "n1", "used")}
	for i := range many {
		objects = append(objects, claim("ns", fmt.Sprint(i), volume.FinalizerClaimProtection))
	}
	inWorld(t, func(w *world) {
		for i := range many {
			if err := w.Claims("ns").Delete(w.Context(), fmt.Sprint(i), metav1.DeleteOptions{}); err != nil {
				w.Fatal(err)
			}
		}
		kubetest.Remove(w.Users, w.Claims("ns"), "used")
		if left, err := w.Users.CoreV1().PersistentVolumeClaims("ns").List(w.Context(), metav1.ListOptions{}); err != nil ||
			len(left.Items) != 1 {
			w.Errorf("%d claims are left, %v", len(left.Items), err)
		}
		w.claim(claim("ns", "used", volume.FinalizerClaimProtection))
	}, objects...)
}

// TestVolumeInUse: a volume that is deleted stays whole while it is bound or its
// provisioner keeps it, and loses nothing but its protection then.
func TestVolumeInUse(t *testing.T) {
	kept := []string{foreign, volume.FinalizerVolumeProtection, volume.FinalizerProvisioner}
	inWorld(t, func(w *world) {
		kubetest.Remove(w.Users, w.Volumes(), "pv")
		w.volume(pv(corev1.VolumeBound, kept...))
		kubetest.Change(w.Users, w.Volumes(), "pv", func(v *corev1.PersistentVolume) {
			v.Status.Phase = corev1.VolumeReleased
		})
		w.volume(pv(corev1.VolumeReleased, kept...))
		kubetest.Change(w.Users, w.Volumes(), "pv", func(v *corev1.PersistentVolume) { v.Finalizers = v.Finalizers[:2] })
		w.volume(pv(corev1.VolumeReleased, foreign))
		if got := kubetest.Writes(w.Own); !slices.Equal(got, []string{"update persistentvolumes pv"}) {
			w.Errorf("writes: %q", got)
		}
	}, pv(corev1.VolumeBound, kept...))
}

// TestIsRepeated: whatever goes wrong with a request, or comes between, it is
// repeated, and nobody's change is written over.
func TestIsRepeated(t *testing.T) {
	protected := func() []runtime.Object {
		return []runtime.Object{claim("ns", "a", foreign, volume.FinalizerClaimProtection), pv(corev1.VolumeReleased, foreign,
			volume.FinalizerVolumeProtection)}
	}
	for name, c := range map[string]struct{ verb, resource string }{
		"no answer for Pods": {"list", "pods"}, "claim": {"update", "persistentvolumeclaims"},
		"volume": {"update", "persistentvolumes"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				n := 0
				w.Own.PrependReactor(c.verb, c.resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					switch n++; n {
					case 1:
						return true, nil, errors.New("connection reset")
					case 2:
						kubetest.Quietly(w.Users, w.Claims("ns"), "a", func(c *corev1.PersistentVolumeClaim) { c.Labels["a"] = "c" })
						kubetest.Quietly(w.Users, w.Volumes(), "pv", func(v *corev1.PersistentVolume) { v.Labels["a"] = "c" })
					}
					return false, nil, nil
				})
				for _, err := range []error{
					w.Claims("ns").Delete(w.Context(), "a", metav1.DeleteOptions{}),
					w.Volumes().Delete(w.Context(), "pv", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}),
				} {
					if err != nil {
						w.Fatal(err)
					}
				}
				kubetest.Pass(time.Minute)
				wantClaim, wantVolume := claim("ns", "a", foreign), pv(corev1.VolumeReleased, foreign)
				wantClaim.Labels["a"], wantVolume.Labels["a"] = "c", "c"
				w.claim(wantClaim)
				w.volume(wantVolume)
			}, protected()...)
		})
	}
}

// TestIsTheLast: what nothing else keeps is gone, and nothing of it comes back.
func TestIsTheLast(t *testing.T) {
	inWorld(t, func(w *world) {
		kubetest.Remove(w.Users, w.Claims("ns"), "a")
		kubetest.Remove(w.Users, w.Volumes(), "pv")
		claims, err := w.Users.CoreV1().PersistentVolumeClaims("").List(w.Context(), metav1.ListOptions{})
		if err != nil || len(claims.Items) > 0 {
			w.Errorf("claims: %v, %v", claims.Items, err)
		}
		volumes, err := w.Users.CoreV1().PersistentVolumes().List(w.Context(), metav1.ListOptions{})
		if err != nil || len(volumes.Items) > 0 {
			w.Errorf("volumes: %v, %v", volumes.Items, err)
		}
		kubetest.Pass(time.Hour)
		if got := kubetest.Writes(w.Own); !slices.Equal(got,
			[]string{"update persistentvolumeclaims a", "update persistentvolumes pv"}) {
			w.Errorf("writes: %q", got)
		}
	}, claim("ns", "a", volume.FinalizerClaimProtection), pv(corev1.VolumeReleased, volume.FinalizerVolumeProtection))
}
