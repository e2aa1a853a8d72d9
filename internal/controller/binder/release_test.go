package binder

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestRelease: what becomes of a volume whose claim is gone is what its policy
// says, and its data's way back, the reference, stays.
func TestRelease(t *testing.T) {
	const recycle, unknown = "volume pv is released, and nobody recycles it: delete its data and its claimRef, or " +
		"the volume", `volume pv is released, and its reclaim policy "Shred" is not known`
	for _, c := range []struct {
		policy  corev1.PersistentVolumeReclaimPolicy
		want    corev1.PersistentVolumePhase
		message string
		told    []string
	}{
		{corev1.PersistentVolumeReclaimRetain, corev1.VolumeReleased, "", nil},
		{corev1.PersistentVolumeReclaimDelete, corev1.VolumeReleased, "", nil},
		{corev1.PersistentVolumeReclaimRecycle, corev1.VolumeFailed, recycle, []string{
			"Warning pv VolumeFailedRecycle: " + recycle + " (user)",
		}},
		{"Shred", corev1.VolumeFailed, unknown, []string{"Warning pv VolumeUnknownReclaimPolicy: " + unknown + " (user)"}},
	} {
		bubble(t, string(c.policy), func(t *testing.T) {
			a := kubetest.NewAPI(t, claim(chosen, bound), pv(linked, phase(corev1.VolumeBound), policy(c.policy)))
			defer begin(a, controller.NewRequests())()
			a.Wrote()
			a.Drop(claim())
			<-time.After(time.Minute)
			want := pv(linked, phase(c.want), policy(c.policy))
			want.Status.Message = c.message
			a.Has(want)
			a.Wrote(volumePhase)
			a.Told(c.told...)
		})
	}
}

// TestReleaseAsksFirst: that a claim is gone is believed of the API server only,
// and as long as that does not answer the volume stays bound.
func TestReleaseAsksFirst(t *testing.T) {
	isBound := pv(linked, phase(corev1.VolumeBound), policy(corev1.PersistentVolumeReclaimDelete))
	for name, known := range map[string][]runtime.Object{
		"the cache has none": nil, "the cache has an older one": {claim(in("ns", "c", "older"))},
	} {
		bubble(t, name, func(t *testing.T) {
			a := kubetest.NewAPI(t, append(known, isBound, class(byHand, volume.NoProvisioner))...)
			later := time.Now().Add(time.Minute)
			a.PrependReactor("get", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				if time.Now().Before(later) {
					return true, claim(chosen, bound), errors.New("not now")
				}
				return true, claim(chosen, bound), nil
			})
			defer begin(a, controller.NewRequests())()
			<-time.After(time.Minute - 1)
			a.Wrote()
			<-time.After(10 * time.Minute)
			a.Wrote()
			a.Has(isBound)
		})
	}
}

// TestReleaseComesBack: when the API server answers, the volume is released.
func TestReleaseComesBack(t *testing.T) {
	bubble(t, "gone", func(t *testing.T) {
		a := kubetest.NewAPI(t, pv(linked, phase(corev1.VolumeBound)))
		later := time.Now().Add(time.Second)
		a.PrependReactor("get", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return time.Now().Before(later), nil, errors.New("not now")
		})
		defer begin(a, controller.NewRequests())()
		a.Wrote()
		<-time.After(time.Minute)
		a.Has(pv(linked, phase(corev1.VolumeReleased)))
	})
}

// TestNotAskedFor: the API server is not asked about the claim of a volume that is
// released, or bound as the cache shows, or only kept for it.
func TestNotAskedFor(t *testing.T) {
	const nobody = "Warning pv VolumeFailedRecycle: volume pv is released, and nobody recycles it: delete its data and " +
		"its claimRef, or the volume (user)"
	recycled := pv(linked, phase(corev1.VolumeFailed), policy(corev1.PersistentVolumeReclaimRecycle))
	for name, c := range map[string]struct {
		objects []runtime.Object
		told    []string
	}{
		"released": {[]runtime.Object{pv(linked, phase(corev1.VolumeReleased))}, nil},
		"failed":   {[]runtime.Object{recycled}, []string{nobody}},
		"bound":    {[]runtime.Object{claim(chosen, bound), pv(linked, phase(corev1.VolumeBound))}, nil},
		"kept":     {[]runtime.Object{pv(keptFor("ns", "c", ""))}, nil},
	} {
		bubble(t, name, func(t *testing.T) {
			a := kubetest.NewAPI(t, c.objects...)
			a.PrependReactor("get", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				t.Error("asked for the claim")
				return false, nil, nil
			})
			defer begin(a, controller.NewRequests())()
			a.Wrote()
			a.Told(c.told...)
			a.Has(c.objects...)
		})
	}
}

// TestClaimElsewhere: a volume whose claim is bound to another one is free again;
// of a user's reference only the uid goes, and what was made for the claim alone is
// deleted.
func TestClaimElsewhere(t *testing.T) {
	elsewhere := func(c *corev1.PersistentVolumeClaim) { chosen(c); bound(c); c.Spec.VolumeName = "another" }
	another := pv(linked, phase(corev1.VolumeBound))
	another.Name, another.UID = "another", "another"
	objects := func(v *corev1.PersistentVolume) []runtime.Object {
		return []runtime.Object{claim(elsewhere), another, v}
	}
	isBound, free := phase(corev1.VolumeBound), phase(corev1.VolumeAvailable)
	for _, s := range []scene{
		{"our link", objects(pv(linked, isBound)), objects(pv(free)), []string{linkVolume, volumePhase}, nil},
		{"a user's link", objects(pv(keptFor("ns", "c", "c"), isBound)), objects(pv(keptFor("ns", "c", ""), free)), []string{
			linkVolume, volumePhase,
		}, nil},
		{"made for it", objects(pv(made, isBound)), objects(pv(made, phase(corev1.VolumeReleased))), []string{
			volumePhase,
		}, nil},
	} {
		s.play(t)
	}
}

// TestLost: a claim without its volume says so, and gets no other one.
func TestLost(t *testing.T) {
	isBound := phase(corev1.VolumeBound)
	unnamed := func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }
	spare := pv()
	spare.Name, spare.UID = "spare", "spare"
	scene{
		"its volume is gone",
		[]runtime.Object{claim(chosen, bound), spare},
		[]runtime.Object{claim(chosen, bound, lost), spare},
		[]string{claimStatus},
		[]string{"Warning ns/c ClaimLost: bound claim has lost its volume pv; data on it is lost (user)"},
	}.play(t)
	scene{
		"its name is gone",
		[]runtime.Object{claim(chosen, bound, unnamed), spare},
		[]runtime.Object{claim(chosen, bound, unnamed, lost), spare},
		[]string{claimStatus},
		[]string{"Warning ns/c ClaimLost: bound claim has lost reference to its volume; data on the volume is lost (user)"},
	}.play(t)
	bubble(t, "its volume goes while it is watched", func(t *testing.T) {
		a := kubetest.NewAPI(t, claim(chosen, bound), pv(linked, isBound), spare)
		defer begin(a, controller.NewRequests())()
		a.Drop(pv())
		<-time.After(time.Minute)
		a.Has(claim(chosen, bound, lost), spare)
		a.Wrote(claimStatus)
	})
}
