package provisioner

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
)

const kept = "external-attacher/d-example"

// unwanted is the object of a volume of claim c, which has gone, with all that
// keeps objects.
func unwanted(change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := plainVolume("c")
	v.UID, v.Labels, v.ResourceVersion = "u-pv", map[string]string{"a": "b"}, "7"
	v.Finalizers = []string{volume.FinalizerVolumeProtection, foreign, volume.FinalizerProvisioner, kept}
	v.Annotations[volume.AnnDeletionSecretName], v.Annotations[volume.AnnDeletionSecretNamespace] = "provisioner-c",
		"ns-secrets"
	v.Status.Phase = corev1.VolumeReleased
	for _, f := range change {
		f(v)
	}
	return v
}

func isGoing(v *corev1.PersistentVolume) {
	v.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
}

// warned and noted are events about the volume of claim c.
func warned(reason, next, words string) [5]string {
	return [5]string{"Warning", reason, "pvc-u-c", next, words}
}

// TestAVolumeGoes: what cannot be undone is asked of the API server itself, then
// the driver deletes by the volume's Secret, and only then the object goes. What
// others have put on it keeps it.
func TestAVolumeGoes(t *testing.T) {
	for name, one := range map[string]struct {
		v        *corev1.PersistentVolume
		protects bool
		writes   []string
		left     []string
	}{
		"released": {unwanted(), false, []string{
			"delete persistentvolumes pvc-u-c", "patch persistentvolumes pvc-u-c",
		}, []string{volume.FinalizerVolumeProtection, foreign}},
		"protected by us, too": {
			unwanted(), true, []string{"delete persistentvolumes pvc-u-c", "patch persistentvolumes pvc-u-c"}, []string{foreign},
		},
		"somebody has failed to delete it": {unwanted(func(v *corev1.PersistentVolume) {
			v.Status.Phase = corev1.VolumeFailed
		}), true, []string{"delete persistentvolumes pvc-u-c", "patch persistentvolumes pvc-u-c"}, []string{foreign}},
		"somebody has deleted it": {unwanted(isGoing), true, []string{"patch persistentvolumes pvc-u-c"}, []string{foreign}},
		"nobody else has anything": {unwanted(func(v *corev1.PersistentVolume) {
			v.Finalizers = volume.Without(v.Finalizers, foreign)
		}), true, []string{"delete persistentvolumes pvc-u-c", "patch persistentvolumes pvc-u-c"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(s *setup) { s.Protects = one.protects }, one.v, key())
			b.works(kindVolume, "pvc-u-c")
			b.called(deletes("c", keyed()))
			b.wrote(one.writes...)
			// What was asked live stands before it.
			if got := b.api.did("get"); len(got) < 3 || got[0] != "get persistentvolumes pvc-u-c" ||
				got[1] != "get persistentvolumeclaims c" || got[2] != "get secrets provisioner-c" {
				t.Errorf("asked live: %v", got)
			}
			if len(one.left) == 0 {
				b.volumesAre()
				return
			}
			want := one.v.DeepCopy()
			want.Finalizers = one.left
			b.volumesAre(want)
			got, err := b.api.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-u-c", metav1.GetOptions{})
			if err != nil || got.DeletionTimestamp == nil {
				t.Errorf("the object is not going: %v", err)
			}
		})
	}
}

// TestRetainedTooLate: who retains a volume while its driver deletes it reads at the volume that it is gone.
func TestRetainedTooLate(t *testing.T) {
	b := newBench(t, nil, unwanted(), key())
	b.driver.OnCall("DeleteVolume", func(int, any) csitest.Action {
		retained := unwanted(func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		})
		if err := b.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), retained,
			""); err != nil {
			t.Error(err)
		}
		return csitest.Action{}
	})
	b.works(kindVolume, "pvc-u-c")
	b.called(deletes("c", keyed()))
	b.told(warned("VolumeDelete", "", "was set to Retain only when DeleteVolume had been called"))
}

// TestAnAttachedVolumeStays: neither the driver nor the API is called, and an event follows only if the volume is still
// attached after a second.
func TestAnAttachedVolumeStays(t *testing.T) {
	attached := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}}
	attached.Spec.Attacher, attached.Spec.Source.PersistentVolumeName = driverName, ptr.To("pvc-u-c")
	b := newBench(t, nil, unwanted(), attached, key())
	b.paused(kindVolume, "pvc-u-c", time.Second)
	b.told()
	testkit.Eventually(t, time.Minute, func() string {
		after, err := b.reconcile(kindVolume, "pvc-u-c")
		if after != 0 || err != nil {
			return fmt.Sprintf("after %v, %v", after, err)
		}
		return ""
	})
	b.called()
	b.wrote()
	b.told([5]string{"Normal", "StillAttached", "pvc-u-c", "attachdetach", "is still attached: va"})
	b.volumesAre(unwanted())
}

// TestAVolumeStays: neither the driver nor the API is asked for anything.
func TestAVolumeStays(t *testing.T) {
	bound := claim("c")
	bound.Spec.VolumeName = "pvc-u-c"
	another := bound.DeepCopy()
	another.UID = "u-another"
	for name, one := range map[string]struct {
		change  func(*setup)
		objects []runtime.Object
		told    [][5]string
	}{
		"its claim is there": {nil, []runtime.Object{unwanted(), bound}, nil},
		"another claim names it": {
			nil, []runtime.Object{unwanted(), another}, [][5]string{warned("ClaimUIDMismatch", "user", "has uid u-another")},
		},
		"the driver is not there": {func(s *setup) { s.late = true }, []runtime.Object{unwanted()}, nil},
		"the driver deletes nothing": {func(s *setup) {
			s.config.Controller.CreateDelete = false
		}, []runtime.Object{unwanted()}, [][5]string{warned("VolumeFailedDelete", driverName, "CREATE_DELETE_VOLUME")}},
		"somebody else's": {nil, []runtime.Object{
			unwanted(func(v *corev1.PersistentVolume) { v.Annotations[volume.AnnProvisionedBy] = "other" }),
		}, nil},
		"in use": {
			nil, []runtime.Object{unwanted(func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound })}, nil,
		},
		"free for another claim, though its phase does not say so yet": {
			nil, []runtime.Object{unwanted(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil })}, nil,
		},
		"deleted, its object not yet": {
			nil, []runtime.Object{unwanted(isGoing, func(v *corev1.PersistentVolume) { v.Finalizers = []string{foreign} })}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, one.change, append(one.objects, key())...)
			b.works(kindVolume, "pvc-u-c")
			b.called()
			b.wrote()
			b.told(one.told...)
			b.volumesAre(one.objects[0].(*corev1.PersistentVolume))
		})
	}
	b := newBench(t, nil)
	b.works(kindVolume, "pvc-u-c")
}

// TestWhatTheCacheDoesNotKnow: the API server says otherwise just before the
// driver is called.
func TestWhatTheCacheDoesNotKnow(t *testing.T) {
	bound := claim("c")
	bound.Spec.VolumeName = "pvc-u-c"
	for name, one := range map[string]struct {
		now   func(*bench)
		words string
	}{
		"the object has changed": {func(b *bench) {
			b.api.PrependReactor("get", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, unwanted(func(v *corev1.PersistentVolume) { v.ResourceVersion = "8" }), nil
			})
		}, "Operation cannot be fulfilled on persistentvolumes"},
		"it is to be retained, which the watch has not told yet": {func(b *bench) {
			retained := unwanted(func(v *corev1.PersistentVolume) {
				v.ResourceVersion, v.Spec.PersistentVolumeReclaimPolicy = "8", corev1.PersistentVolumeReclaimRetain
			})
			if err := b.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), retained,
				""); err != nil {
				b.t.Fatal(err)
			}
		}, "Operation cannot be fulfilled on persistentvolumes"},
		"the object cannot be read": {
			func(b *bench) { b.api.Refuse("get", "persistentvolumes", errLost) }, "get volume pvc-u-c: the answer is lost",
		},
		"the object has gone": {func(b *bench) {
			b.api.Refuse("get", "persistentvolumes", apierrors.NewNotFound(corev1.Resource("x"), "y"))
		}, ""},
		"a claim has it": {func(b *bench) {
			if err := b.api.Tracker().Add(bound); err != nil {
				b.t.Fatal(err)
			}
		}, "Operation cannot be fulfilled on persistentvolumeclaims"},
		"the claim cannot be read": {
			func(b *bench) { b.api.Refuse("get", "persistentvolumeclaims", errLost) },
			"get claim of volume pvc-u-c: the answer is lost",
		},
		"the Secret cannot be read": {
			func(b *bench) { b.api.Refuse("get", "secrets", errLost) },
			"read secret ns-secrets/provisioner-c: the answer is lost",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, unwanted(), key())
			one.now(b)
			if one.words == "" {
				b.works(kindVolume, "pvc-u-c")
			} else {
				b.errs(kindVolume, "pvc-u-c", one.words)
			}
			b.called()
			b.wrote()
		})
	}
	// A claim of the name that has another volume keeps nothing.
	bound.Spec.VolumeName = "another"
	b := newBench(t, nil, unwanted(), key(), bound)
	b.works(kindVolume, "pvc-u-c")
	b.called(deletes("c", keyed()))
}

// TestADepartedClaimIsNotAskedFor: who has seen the claim of a volume go need not ask for it again, unless the volume
// has referred to another one since.
func TestADepartedClaimIsNotAskedFor(t *testing.T) {
	bound := claim("c")
	bound.Spec.VolumeName = "pvc-u-c"
	other := func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID, v.ResourceVersion = "u-other", "8" }
	for name, one := range map[string]struct {
		then  []*corev1.PersistentVolume
		asked bool
	}{
		"it was seen":                  {nil, false},
		"the volume has another":       {[]*corev1.PersistentVolume{unwanted(other)}, true},
		"the volume has it once more":  {[]*corev1.PersistentVolume{unwanted(other), unwanted()}, true},
		"another one of the name went": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			gone := bound.DeepCopy()
			if one.asked && one.then == nil {
				gone.UID = "u-other"
			}
			b := newBench(t, func(s *setup) { s.hears = true }, unwanted(), gone, key())
			b.forgetsWakes("volume/pvc-u-c")
			goes(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "ns", "c").does(b)
			b.forgetsWakes("volume/pvc-u-c")
			for _, v := range one.then {
				if err := b.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), v, ""); err != nil {
					t.Fatal(err)
				}
				b.forgetsWakes("volume/pvc-u-c")
			}
			b.works(kindVolume, "pvc-u-c")
			if got := slices.Contains(b.api.did("get"), "get persistentvolumeclaims c"); got != one.asked {
				t.Errorf("asked for the claim: %v", got)
			}
		})
	}
}

// TestWhatTheDriverDoesNotDelete: the object stays as it is.
func TestWhatTheDriverDoesNotDelete(t *testing.T) {
	for code, next := range map[codes.Code]string{
		codes.FailedPrecondition: "user", codes.Internal: driverName, codes.DeadlineExceeded: driverName,
	} {
		b := newBench(t, nil, unwanted(), key())
		b.fails("DeleteVolume", no(code), true)
		b.errs(kindVolume, "pvc-u-c", "delete volume id-pvc-u-c: rpc error: code = "+code.String())
		b.wrote()
		b.volumesAre(unwanted())
		b.told(warned("VolumeFailedDelete", next,
			"volume pvc-u-c is not deleted by driver "+driverName+": "+code.String()+": no"))
		b.fails("DeleteVolume", nil, false)
		b.works(kindVolume, "pvc-u-c")
		b.called(deletes("c", keyed()), deletes("c", keyed()))
	}
	b := newBench(t, nil, unwanted(), key())
	b.api.PrependReactor("get", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		b.drivers.Remove(b.dialed)
		return false, nil, nil
	})
	b.errs(kindVolume, "pvc-u-c", "d.example: driver has gone")
	b.wrote()
}

// TestASecretThatIsGone does not keep a volume for ever.
func TestASecretThatIsGone(t *testing.T) {
	b := newBench(t, nil, unwanted())
	b.works(kindVolume, "pvc-u-c")
	b.called(deletes("c", nil))
	b.told(warned("VolumeFailedDelete", "user",
		"volume id-pvc-u-c is deleted without its secret: read secret ns-secrets/provisioner-c"))
}

// TestTheObjectOfADeletedVolume: whatever comes between, it is another try to let
// it go; and what others have put on it meanwhile stays.
func TestTheObjectOfADeletedVolume(t *testing.T) {
	gone := apierrors.NewNotFound(corev1.Resource("persistentvolumes"), "pvc-u-c")
	for name, one := range map[string]struct {
		verb  string
		err   error
		words string
	}{
		"gone before it is deleted":  {"delete", gone, ""},
		"it is not deleted":          {"delete", errLost, "delete volume pvc-u-c: the answer is lost"},
		"gone before it is let go":   {"patch", gone, ""},
		"it is not let go":           {"patch", errLost, "patch volume pvc-u-c: the answer is lost"},
		"somebody has another write": {"update", errLost, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, unwanted(), key())
			b.api.Refuse(one.verb, "persistentvolumes", one.err)
			if one.words == "" {
				b.works(kindVolume, "pvc-u-c")
			} else {
				b.errs(kindVolume, "pvc-u-c", one.words)
			}
			b.called(deletes("c", keyed()))
		})
	}
	b := newBench(t, nil, unwanted(), key())
	if err := b.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"),
		unwanted(func(v *corev1.PersistentVolume) { v.UID = "u-new" }), ""); err != nil {
		t.Fatal(err)
	}
	b.api.PrependReactor("get", "persistentvolumes",
		func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, unwanted(func(v *corev1.PersistentVolume) { v.ResourceVersion = "1" }), nil
		})
	b.errs(kindVolume, "pvc-u-c", "of uid u-new, not")
}

// TestFinalizersThatChangedMeanwhile: what keeps an object is taken away as the object is now, and what others have
// added meanwhile stays.
func TestFinalizersThatChangedMeanwhile(t *testing.T) {
	more := func(v *corev1.PersistentVolume) { v.Finalizers = append(v.Finalizers, "example.org/more") }
	b := newBench(t, nil, unwanted(), key())
	b.api.PrependReactor("patch", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		err := b.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"),
			unwanted(more, isGoing), "")
		return err != nil, nil, err
	})
	b.works(kindVolume, "pvc-u-c")
	want := unwanted(more)
	want.Finalizers = volume.Without(want.Finalizers, volume.FinalizerProvisioner, kept)
	b.volumesAre(want)
}

// TestWhoKeepsAnObject: a volume that is to be deleted with its claim gets the
// finalizer, one that is to be retained loses it, and that is all that changes.
func TestWhoKeepsAnObject(t *testing.T) {
	inUse := func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }
	bare := func(v *corev1.PersistentVolume) {
		v.Finalizers = volume.Without(v.Finalizers, volume.FinalizerProvisioner)
	}
	retain := func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	last := func(v *corev1.PersistentVolume) {
		bare(v)
		v.Finalizers = append(v.Finalizers, volume.FinalizerProvisioner)
	}
	for name, one := range map[string]struct{ before, after *corev1.PersistentVolume }{
		"adopted":  {unwanted(inUse, bare), unwanted(inUse, last)},
		"disowned": {unwanted(retain), unwanted(retain, bare)},
		"neither":  {unwanted(retain, bare), unwanted(retain, bare)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, one.before, key())
			b.works(kindVolume, "pvc-u-c")
			b.volumesAre(one.after)
			b.called()
			// What was written is known, and is not written again.
			b.works(kindVolume, "pvc-u-c")
			if got := b.api.writes(); name != "neither" && !slices.Equal(got, []string{"patch persistentvolumes pvc-u-c"}) {
				t.Errorf("writes: %v", got)
			}
		})
	}
	b := newBench(t, nil, unwanted(inUse, bare))
	b.api.Refuse("patch", "persistentvolumes", errLost)
	b.errs(kindVolume, "pvc-u-c", "patch volume pvc-u-c: the answer is lost")
	b.api.Refuse("patch", "persistentvolumes", apierrors.NewNotFound(corev1.Resource("x"), "y"))
	b.works(kindVolume, "pvc-u-c")
}

// TestRetainedWhileTheLogTellsOfIt: the object is let go when no restart can take
// the volume for one that nobody knows of.
func TestRetainedWhileTheLogTellsOfIt(t *testing.T) {
	retained := unwanted(func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	})
	open := "retain volume pvc-u-c: the intent of its creation is not resolved"
	b := newBench(t, nil, retained, left(), key())
	b.errs(kindVolume, "pvc-u-c", open)
	b.wrote()
	b.works(kindClaim, "u-c")
	b.works(kindVolume, "pvc-u-c")
	b.wrote("delete configmaps volplane-intents-7", "patch persistentvolumes pvc-u-c")

	for _, verb := range []string{"list", "delete"} {
		b = newBench(t, nil, retained, left(), key())
		if verb == "delete" {
			b.works(kindClaim, "u-c")
		}
		b.api.Refuse(verb, "configmaps", errLost)
		b.errs(kindVolume, "pvc-u-c", "the answer is lost")
		b.volumesAre(retained)
	}
	b = newBench(t, nil, unwanted(func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy, v.Spec.ClaimRef = corev1.PersistentVolumeReclaimRetain, nil
	}), left())
	b.works(kindVolume, "pvc-u-c")
	b.wrote("patch persistentvolumes pvc-u-c")
}

// TestEachDriverDeletesItsOwn.
func TestEachDriverDeletesItsOwn(t *testing.T) {
	config := csitest.Full()
	config.Name = "other.example"
	other := csitest.Start(t, config)
	d, err := csi.Dial(t.Context(), other.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	b := newBench(t, nil, unwanted(), key(), unwanted(func(v *corev1.PersistentVolume) {
		v.Name, v.UID, v.Annotations[volume.AnnProvisionedBy] = "pvc-u-d", "u-d", "other.example"
		v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle = "other.example", "its"
		v.Spec.ClaimRef.Name = "d"
	}))
	b.drivers.Put(d)
	b.works(kindVolume, "pvc-u-c")
	b.called(deletes("c", keyed()))
	b.works(kindVolume, "pvc-u-d")
	b.called(deletes("c", keyed()))
	if got := other.Calls(); len(got) != 1 ||
		!proto.Equal(got[0].Request, func() proto.Message { r := deletes("", keyed()); r.VolumeId = "its"; return r }()) {
		t.Errorf("calls: %v", got)
	}
}
