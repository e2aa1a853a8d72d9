package binder

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestWholeBind: claim and volume name each other in the end, in writes of which
// the volume's come first, and nothing else of them has changed.
func TestWholeBind(t *testing.T) {
	all := []string{linkVolume, volumePhase, linkClaim, claimStatus}
	isBound := phase(corev1.VolumeBound)
	for _, s := range []scene{
		{"a free volume", []runtime.Object{claim(), pv()}, []runtime.Object{
			claim(chosen, bound), pv(linked, isBound),
		}, all, nil},
		{"a volume that a user keeps for the claim", []runtime.Object{
			claim(), pv(keptFor("ns", "c", "")),
		}, []runtime.Object{claim(chosen, bound), pv(referring, isBound)}, all, nil},
		{"a volume made for the claim", []runtime.Object{claim(), pv(made)}, []runtime.Object{
			claim(chosen, asked, bound), pv(made, isBound),
		}, all[1:], nil},
		{"a volume that is new", []runtime.Object{claim(), pv(made, phase(""))}, []runtime.Object{
			claim(chosen, asked, bound), pv(made, isBound),
		}, all[1:], nil},
		{"only the volume says so", []runtime.Object{claim(), pv(linked, isBound)}, []runtime.Object{
			claim(chosen, bound), pv(linked, isBound),
		}, all[2:], nil},
		{"both say so", []runtime.Object{
			claim(chosen, bound), pv(linked, isBound),
		}, []runtime.Object{claim(chosen, bound), pv(linked, isBound)}, nil, nil},
		{"a lost claim whose volume is there again", []runtime.Object{
			claim(chosen, bound, lost), pv(linked, isBound),
		}, []runtime.Object{claim(chosen, bound), pv(linked, isBound)}, all[3:], nil},
	} {
		s.play(t)
	}
}

// TestNamedBind: of a claim that names its volume, the volume's own turn may make the
// volume Bound; it is done once in any case.
func TestNamedBind(t *testing.T) {
	for name, v := range map[string][2]*corev1.PersistentVolume{
		"a free volume":                {pv(), pv(linked, phase(corev1.VolumeBound))},
		"a volume that is kept for it": {pv(keptFor("ns", "c", "")), pv(referring, phase(corev1.VolumeBound))},
	} {
		bubble(t, name, func(t *testing.T) {
			a := kubetest.NewAPI(t, claim(named), v[0])
			defer begin(a, controller.NewRequests())()
			<-time.After(time.Minute)
			a.Has(claim(named, bound), v[1])
			a.Did(linkVolume, volumePhase, linkClaim, claimStatus)
		})
	}
}

// TestOthersVolumes: a volume that is another claim's, or kept for one, is not
// bound, not even to a claim that names it or had it before, and the volume is left
// as it is.
func TestOthersVolumes(t *testing.T) {
	for name, ref := range map[string][3]string{
		"another namespace":              {"other", "c", "theirs"},
		"another namespace, without uid": {"other", "c", ""},
		"another name":                   {"ns", "theirs", "theirs"},
		"another name, without uid":      {"ns", "theirs", ""},
	} {
		// With a uid it is bound to that claim already, without one it waits for it.
		theirs, kept := claim(in(ref[0], ref[1], ref[2]), chosen, bound),
			pv(keptFor(ref[0], ref[1], ref[2]), phase(corev1.VolumeBound))
		with := func(c *corev1.PersistentVolumeClaim) []runtime.Object { return []runtime.Object{theirs, kept, c} }
		if ref[2] == "" {
			kept.Status.Phase = corev1.VolumeAvailable
			with = func(c *corev1.PersistentVolumeClaim) []runtime.Object { return []runtime.Object{kept, c} }
		}
		says := "Warning ns/c FailedBinding: volume pv already bound to a different claim: " + ref[0] + "/" +
			ref[1] + " (user)"
		scene{name + " has it", with(claim()), with(claim()), nil, []string{nothingFits}}.play(t)
		scene{name + " has what it names", with(claim(named)), with(claim(named)), nil, []string{says}}.play(t)
		scene{name + " has what was chosen", with(claim(chosen)), with(claim(chosen)), nil, []string{says}}.play(t)
		scene{
			name + " has what it had", with(claim(chosen, bound)), with(claim(chosen, bound, lost)),
			[]string{claimStatus},
			[]string{"Warning ns/c ClaimMisbound: two claims are bound to volume pv, this one is bound incorrectly (user)"},
		}.play(t)
	}
}

// TestClaimMadeAnew: a volume of a claim that is gone is not bound to one that has
// its name now.
func TestClaimMadeAnew(t *testing.T) {
	before := pv(keptFor("ns", "c", "gone"), phase(corev1.VolumeBound))
	scene{"it does not name the volume", []runtime.Object{claim(), before}, []runtime.Object{
		claim(), pv(keptFor("ns", "c", "gone"), phase(corev1.VolumeReleased)),
	}, []string{volumePhase}, []string{nothingFits}}.play(t)
	scene{
		"it names the volume",
		[]runtime.Object{claim(named), before},
		[]runtime.Object{claim(named), pv(keptFor("ns", "c", "gone"), phase(corev1.VolumeReleased))},
		[]string{volumePhase},
		[]string{"Warning ns/c FailedBinding: volume pv already bound to a different claim: ns/c (user)"},
	}.play(t)
	remade := pv(keptFor("ns", "c", "gone"), phase(corev1.VolumeBound), policy(corev1.PersistentVolumeReclaimDelete))
	why := "ClaimUIDMismatch: volume pv is kept: claim ns/c names it and has uid c, its claimRef has uid gone; write " +
		"the claim's uid there, or delete the claim (user)"
	scene{
		"it was restored as it was",
		[]runtime.Object{claim(chosen, bound), remade},
		[]runtime.Object{claim(chosen, bound, lost), remade},
		[]string{claimStatus},
		[]string{"Warning ns/c " + why, "Warning pv " + why},
	}.play(t)
}

// TestUnfit: what a claim may not have stays free, and the claim's owner is told.
func TestUnfit(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"too small":     func(v *corev1.PersistentVolume) { v.Spec.Capacity = storage("1Mi") },
		"another class": func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "other" },
		"not shared": func(v *corev1.PersistentVolume) {
			v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		},
	} {
		scene{
			name, []runtime.Object{claim(), pv(change)}, []runtime.Object{claim(), pv(change)}, nil, []string{nothingFits},
		}.play(t)
	}
	scene{
		"named and too small",
		[]runtime.Object{claim(named), pv(func(v *corev1.PersistentVolume) { v.Spec.Capacity = storage("1Mi") })},
		[]runtime.Object{claim(named)},
		nil,
		[]string{"Warning ns/c VolumeMismatch: volume pv cannot be bound: it has 1Mi, the claim requests 1Gi (user)"},
	}.play(t)
}

// TestBindGoesOn: whichever write fails, is lost on its way there or back, or is
// the last one of a process, the bind is finished with no write done twice.
func TestBindGoesOn(t *testing.T) {
	all := []string{linkVolume, volumePhase, linkClaim, claimStatus}
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "o", nil)
	for i := range all {
		for name, fate := range map[string]struct {
			done    bool
			err     error
			restart bool
		}{
			"refused": {false, conflict, false}, "not answered": {true, apierrors.NewInternalError(fmt.Errorf("lost")), false},
			"last before": {false, apierrors.NewInternalError(fmt.Errorf("killed")), true},
			"last":        {true, apierrors.NewInternalError(fmt.Errorf("killed")), true},
		} {
			bubble(t, fmt.Sprint(all[i], " is ", name), func(t *testing.T) {
				a := kubetest.NewAPI(t, claim(), pv(), class(byHand, volume.NoProvisioner))
				a.Fate = func(n int, _ string) (bool, error) {
					if n < i+1 || n > i+1 && !fate.restart {
						return true, nil
					}
					return fate.done && n == i+1, fate.err
				}
				stop := begin(a, controller.NewRequests())
				if fate.restart {
					stop()
					a.Lock()
					a.Fate = nil
					a.Unlock()
					stop = begin(a, controller.NewRequests())
				}
				defer stop()
				<-time.After(time.Minute)
				a.Did(all...)
				a.Has(claim(chosen, bound), pv(linked, phase(corev1.VolumeBound)))
			})
		}
	}
}
