package binder

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const elsewhereAsked = "Normal ns/c ExternalProvisioning: waiting for a volume to be created by the external " +
	"provisioner 'd.example' (d.example)"

// TestConsumer: a claim of a class that binds late waits for a Pod, then for the
// Pod's node, and only then is a volume asked for, of this process or of another
// one.
func TestConsumer(t *testing.T) {
	waitsForPod := "Normal ns/c WaitForPodScheduled: waiting for pod p to be scheduled (placement)"
	waitsForNode := "Normal ns/c WaitForPodScheduled: waiting for the node of pod here to be written on the " +
		"claim (placement)"
	for _, near := range []bool{true, false} {
		bubble(t, map[bool]string{true: "near", false: "far"}[near], func(t *testing.T) {
			requests := controller.NewRequests()
			var woken []types.UID
			requests.Serve(func(d string) bool { return near && d == driver }, func(c types.UID) { woken = append(woken, c) })
			// A free volume is none for it: nobody knows where the Pod will be.
			spare := pv()
			spare.Spec.StorageClassName = "late"
			ended := pod("there", "n1")
			ended.Status.Phase = corev1.PodSucceeded
			a := kubetest.NewAPI(t, claim(of("late")), class("late", driver, late), spare, ended)
			defer begin(a, requests)()
			a.Told(waitsForUser)
			for _, step := range []struct {
				do   func()
				told string
			}{
				{func() { a.Put(pod("p", "")) }, waitsForPod},
				{func() { a.Drop(pod("p", "")) }, waitsForUser},
				{func() { a.Put(pod("here", "n1")) }, waitsForNode},
				{func() { a.Drop(pod("here", "n1")) }, waitsForUser},
				{func() { a.Put(pod("p", "")) }, waitsForPod},
			} {
				// Events of the same moment have the same name.
				<-time.After(time.Minute)
				step.do()
				synctest.Wait()
				a.Told(step.told)
			}
			a.Has(claim(of("late")), spare)
			a.Wrote()
			if len(woken) > 0 || requests.Asked("c") != "" {
				t.Errorf("asked too early: %v", woken)
			}
			a.Put(claim(of("late"), selected))
			<-time.After(time.Minute)
			if near {
				a.Has(claim(of("late"), selected), spare)
				a.Wrote()
				a.Told()
				if len(woken) != 1 || woken[0] != "c" || requests.Asked("c") != driver {
					t.Errorf("asked: %v, %q", woken, requests.Asked("c"))
				}
				return
			}
			a.Has(claim(of("late"), selected, asked), spare)
			a.Wrote(linkClaim)
			a.Told(elsewhereAsked)
		})
	}
}

// TestWakes: whatever comes last, the claim is bound then, or the volume asked for.
func TestWakes(t *testing.T) {
	isBound := phase(corev1.VolumeBound)
	whole := []runtime.Object{claim(chosen, bound), pv(linked, isBound)}
	hand := class(byHand, volume.NoProvisioner)
	for _, c := range []struct {
		name                string
		before, last, after []runtime.Object
	}{
		{"the claim", []runtime.Object{pv(), hand}, []runtime.Object{claim()}, whole},
		{"a free volume", []runtime.Object{claim(), hand}, []runtime.Object{pv()}, whole},
		{"a volume that is freed", []runtime.Object{
			claim(), hand, pv(keptFor("ns", "c2", "")),
		}, []runtime.Object{pv()}, whole},
		{"a volume that is new", []runtime.Object{claim(), hand}, []runtime.Object{pv(phase(""))}, whole},
		{"a volume kept for it", []runtime.Object{
			claim(), hand,
		}, []runtime.Object{pv(keptFor("ns", "c", ""))}, []runtime.Object{claim(chosen, bound), pv(referring, isBound)}},
		{"a volume made for it", []runtime.Object{
			claim(of("fast")), class("fast", driver),
		}, []runtime.Object{pv(made)}, []runtime.Object{claim(of("fast"), chosen, asked, bound), pv(made, isBound)}},
		{"the volume that it names", []runtime.Object{claim(named), hand}, []runtime.Object{pv()}, []runtime.Object{
			claim(named, bound), pv(linked, isBound),
		}},
		{"its wish", []runtime.Object{claim(of("other")), pv(), hand}, []runtime.Object{claim()}, whole},
		{"a reference that was taken away", []runtime.Object{
			claim(chosen, bound), pv(linked, isBound),
		}, []runtime.Object{pv(isBound)}, whole},
		{"the class", []runtime.Object{claim(of("fast"))}, []runtime.Object{class("fast", driver)}, []runtime.Object{
			claim(of("fast"), asked),
		}},
		{"a default class", []runtime.Object{
			claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }),
		}, []runtime.Object{class("fast", driver, byDefault)}, []runtime.Object{claim(of("fast"), asked)}},
		{"a class that becomes the default", []runtime.Object{
			claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }), class("fast", driver),
		}, []runtime.Object{class("fast", driver, byDefault)}, []runtime.Object{claim(of("fast"), asked)}},
	} {
		bubble(t, c.name, func(t *testing.T) {
			a := kubetest.NewAPI(t, c.before...)
			defer begin(a, controller.NewRequests())()
			for _, o := range c.last {
				a.Put(o)
			}
			<-time.After(time.Minute)
			for _, o := range c.after {
				// The reference has the version that the claim had.
				if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.ResourceVersion != "" {
					v.Spec.ClaimRef.ResourceVersion = versionSeen(c.last)
				}
			}
			a.Has(c.after...)
		})
	}
}

// versionSeen is the version of the claim where it came last, or was there first.
func versionSeen(last []runtime.Object) string {
	if _, ok := last[0].(*corev1.PersistentVolumeClaim); ok {
		return "2"
	}
	return "1"
}

// TestNoClass: a claim of a class that does not exist, or of none, says so once, and
// is Pending.
func TestNoClass(t *testing.T) {
	fresh := func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = "" }
	for _, s := range []scene{
		{"no such class", []runtime.Object{claim(of("gone"), fresh)}, []runtime.Object{claim(of("gone"))}, []string{
			claimStatus,
		}, []string{`Warning ns/c ProvisioningFailed: storageclass.storage.k8s.io "gone" not found (user)`}},
		{"none", []runtime.Object{claim(of(""), fresh)}, []runtime.Object{claim(of(""))}, []string{claimStatus}, []string{
			"Normal ns/c FailedBinding: no persistent volumes available for this claim and no storage class is set (user)",
		}},
		{"no volume of the name", []runtime.Object{claim(named, fresh)}, []runtime.Object{
			claim(named),
		}, []string{claimStatus}, []string{"Normal ns/c VolumeMissing: volume pv does not exist (user)"}},
	} {
		s.play(t)
	}
}

// TestComesBack: a phase that cannot be written is written later, and nothing is told
// before.
func TestComesBack(t *testing.T) {
	fresh := func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = "" }
	for name, c := range map[string]struct {
		before, after runtime.Object
		told          []string
	}{
		"a claim's": {claim(of(""), fresh), claim(of("")), []string{
			"Normal ns/c FailedBinding: no persistent volumes available for this claim and no storage class is set (user)",
		}},
		"a volume's": {pv(phase("")), pv(), nil},
	} {
		bubble(t, name, func(t *testing.T) {
			a := kubetest.NewAPI(t, c.before)
			a.Fate = func(n int, _ string) (bool, error) {
				if n == 1 {
					return false, errors.New("not now")
				}
				return true, nil
			}
			defer begin(a, controller.NewRequests())()
			a.Has(c.before)
			a.Told()
			<-time.After(time.Minute)
			a.Has(c.after)
			a.Told(c.told...)
		})
	}
}

// TestDefaultClass: a claim that names no class gets the default one.
func TestDefaultClass(t *testing.T) {
	bubble(t, "assigned", func(t *testing.T) {
		none := func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }
		a := kubetest.NewAPI(t, claim(none), class("fast", driver, byDefault), class("slow", driver))
		defer begin(a, controller.NewRequests())()
		a.Has(claim(of("fast"), asked))
		a.Wrote(linkClaim, linkClaim)
		a.Told(elsewhereAsked, "Normal ns/c DefaultClassAssigned: the default class fast is assigned (binder)")
	})
}

// TestVolumeObject: a volume for nobody is Available, and that it is kept for
// somebody does not change it.
func TestVolumeObject(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"free": func(*corev1.PersistentVolume) {}, "kept": keptFor("other", "c", ""),
	} {
		failed := pv(change, phase(corev1.VolumePending))
		failed.Status.Message = "old"
		scene{name, []runtime.Object{failed}, []runtime.Object{pv(change)}, []string{volumePhase}, nil}.play(t)
	}
}
