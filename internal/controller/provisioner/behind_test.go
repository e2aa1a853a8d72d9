package provisioner

import (
	"strconv"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// TestWhatAStopLeavesBehind: a call was under way when the process was killed, and
// the claim went meanwhile. The next process asks the same once more to learn
// what there is, deletes it, and forgets it then, but not before.
func TestWhatAStopLeavesBehind(t *testing.T) {
	undone := notes("VolumeDelete", "", "volume pvc-u-c, which no claim needs any more, is deleted")
	for name, one := range map[string]struct {
		create, delete codes.Code
		calls          []proto.Message
		stays          bool
		told           [][5]string
	}{
		"it was made, or not": {0, 0, []proto.Message{asksFor("c"), deletes("c", nil)}, false, [][5]string{undone}},
		"nothing is made":     {codes.InvalidArgument, 0, []proto.Message{asksFor("c")}, false, nil},
		"a no that proves little": {codes.Internal, 0, []proto.Message{asksFor("c")}, true, [][5]string{
			warns("ProvisioningCleanupFailed", driverName, "Internal: no"),
		}},
		"no to this call only": {codes.PermissionDenied, 0, []proto.Message{asksFor("c")}, true, [][5]string{
			warns("ProvisioningCleanupFailed", "user", "PermissionDenied: no"),
		}},
		"no answer": {codes.Unavailable, 0, []proto.Message{asksFor("c")}, true, [][5]string{
			warns("ProvisioningCleanupFailed", driverName, "Unavailable: no"),
		}},
		"cannot be deleted": {0, codes.FailedPrecondition, []proto.Message{
			asksFor("c"), deletes("c", nil),
		}, true, [][5]string{warns("ProvisioningCleanupFailed", "user", "yet: FailedPrecondition: no")}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, claim("c"), class())
			b.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
				return csitest.Action{After: true, Err: no(codes.Unavailable)}
			})
			b.errs(kindClaim, "u-c", "Unavailable")
			b.told(warns(madeNo, driverName, "Unavailable"))
			b.stop()
			b.deleteClaim("c")
			for _, c := range []struct {
				method string
				code   codes.Code
			}{{"CreateVolume", one.create}, {"DeleteVolume", one.delete}} {
				b.driver.OnCall(c.method, nil)
				if c.code != 0 {
					b.fails(c.method, no(c.code), false)
				}
			}
			b.start()
			if one.stays {
				b.errs(kindClaim, "u-c", "undo volume pvc-u-c: ")
			} else {
				b.works(kindClaim, "u-c")
			}
			b.called(append([]proto.Message{asksFor("c")}, one.calls...)...)
			b.told(append(one.told, warns(madeNo, driverName, "Unavailable"))...)
			b.sweeps()
			if one.stays {
				b.open("u-c")
			} else {
				b.open()
			}
			b.volumesAre()
		})
	}
}

// left is an intent of claim c of an earlier life that wants a Secret.
func left(change ...func(*provision.Intent)) *corev1.ConfigMap {
	in := &provision.Intent{
		Driver: driverName, Name: "pvc-u-c", Bytes: gib, Modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Class: "earlier",
		Claim: corev1.ObjectReference{
			APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "c", UID: "u-c",
		},
		Reclaim: corev1.PersistentVolumeReclaimDelete, Secrets: provision.Secrets{Provision: ref("provisioner")},
	}
	for _, f := range change {
		f(in)
	}
	m := begun("u-c", "pvc-u-c")
	m.Data = map[string]string{"u-c": in.String()}
	return m
}

func asksWith(secrets map[string]string) *csipb.CreateVolumeRequest {
	r := asksFor("c")
	r.Secrets = secrets
	return r
}

// TestTheWayBackAndItsSecret: it has the Secret of the intent; without it the
// driver is asked, too, but its no proves nothing then.
func TestTheWayBackAndItsSecret(t *testing.T) {
	b := newBench(t, nil, left(), key())
	b.works(kindClaim, "u-c")
	b.called(asksWith(keyed()), deletes("c", keyed()))
	b.sweeps()
	b.open()

	b = newBench(t, nil, left())
	b.works(kindClaim, "u-c")
	b.called(asksFor("c"), deletes("c", nil))
	b.sweeps()
	b.open()
	without := warns("VolumeFailedDelete", "user",
		"volume id-pvc-u-c is deleted without its secret: read secret ns-secrets/provisioner-c")
	b.told(without, notes("VolumeDelete", "", ""))

	b = newBench(t, nil, left())
	b.fails("CreateVolume", no(codes.InvalidArgument), false)
	b.errs(kindClaim, "u-c", "undo volume pvc-u-c: rpc error: code = InvalidArgument")
	b.sweeps()
	b.open("u-c")

	// The driver may have said no because of that.
	b = newBench(t, nil, left())
	b.fails("DeleteVolume", no(codes.PermissionDenied), false)
	b.errs(kindClaim, "u-c", `PermissionDenied: no; read secret ns-secrets/provisioner-c`)
	b.told(without, warns("ProvisioningCleanupFailed", "user",
		"is not deleted yet: PermissionDenied: no; read secret ns-secrets/provisioner-c"))
	b.sweeps()
	b.open("u-c")

	b = newBench(t, nil, left(), key())
	b.api.Refuse("get", "secrets", errLost)
	b.errs(kindClaim, "u-c", "read secret ns-secrets/provisioner-c: the answer is lost")
	b.called()
	b.sweeps()
	b.open("u-c")
}

// TestAnotherThanTheClaimIsAskedFirst: the object of the volume may be there and
// not be seen yet, and somebody else's volume is never deleted.
func TestAnotherThanTheClaimIsAskedFirst(t *testing.T) {
	b := newBench(t, nil, left(), key())
	if err := b.api.Tracker().Add(plainVolume("c")); err != nil {
		t.Fatal(err)
	}
	b.works(kindClaim, "u-c")
	b.called()
	b.sweeps()
	b.open()
	b.volumesAre(plainVolume("c"))

	b = newBench(t, nil, left(), key())
	b.api.Refuse("get", "persistentvolumes", errLost)
	b.errs(kindClaim, "u-c", "get volume pvc-u-c: the answer is lost")
	b.called()
	b.sweeps()
	b.open("u-c")

	other := plainVolume("other")
	other.Spec.CSI.VolumeHandle = "id-pvc-u-c"
	b = newBench(t, nil, left(), key(), other)
	b.works(kindClaim, "u-c")
	b.called(asksWith(keyed()))
	b.told()
	b.sweeps()
	b.open()
	b.volumesAre(other)
}

// TestAnIntentAndItsClaim: what becomes of an intent of an earlier life follows from
// the claim of now and from the volume's object.
func TestAnIntentAndItsClaim(t *testing.T) {
	going := claim("c")
	going.DeletionTimestamp, going.Finalizers = &metav1.Time{Time: time.Unix(1e9, 0)}, []string{foreign}
	has := claim("c")
	has.Spec.VolumeName, has.Annotations[volume.AnnBindCompleted] = "pvc-u-c", "yes"
	another := claim("c")
	another.Spec.VolumeName = "another"
	retain := func(in *provision.Intent) { in.Reclaim = corev1.PersistentVolumeReclaimRetain }
	kept := plainVolume("c")
	kept.Spec.PersistentVolumeReclaimPolicy, kept.Finalizers = corev1.PersistentVolumeReclaimRetain, kept.Finalizers[:1]
	for name, one := range map[string]struct {
		intent  *corev1.ConfigMap
		objects []runtime.Object
		calls   []proto.Message
		volumes []*corev1.PersistentVolume
	}{
		"still wanted": {left(), []runtime.Object{claim("c")}, []proto.Message{asksWith(keyed())}, []*corev1.PersistentVolume{
			earlier(plainVolume("c")),
		}},
		"being deleted": {
			left(), []runtime.Object{going}, []proto.Message{asksWith(keyed()), deletes("c", keyed())}, nil,
		},
		"has another volume": {
			left(), []runtime.Object{another}, []proto.Message{asksWith(keyed()), deletes("c", keyed())}, nil,
		},
		"had it, and it was retained": {left(), []runtime.Object{has}, nil, nil},
		"saved": {
			left(), []runtime.Object{claim("c"), plainVolume("c")}, nil, []*corev1.PersistentVolume{plainVolume("c")},
		},
		"gone, and to be retained": {
			left(retain), nil, []proto.Message{asksWith(keyed())}, []*corev1.PersistentVolume{earlier(kept)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, append(one.objects, one.intent, key(), class())...)
			b.works(kindClaim, "u-c")
			b.called(one.calls...)
			b.volumesAre(one.volumes...)
			b.sweeps()
			b.restart()
			b.works(kindClaim, "u-c")
			b.called(one.calls...)
			b.sweeps()
			b.open()
		})
	}
}

// earlier is the object that follows from what left has written.
func earlier(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	v.Spec.StorageClassName = "earlier"
	v.Annotations[volume.AnnDeletionSecretName], v.Annotations[volume.AnnDeletionSecretNamespace] = "provisioner-c",
		"ns-secrets"
	return v
}

// TestADriverThatIsNotThere may have made a volume: it is waited for, and after a
// while that is told, once; when it has come, that is forgotten.
func TestADriverThatIsNotThere(t *testing.T) {
	b := newBench(t, func(s *setup) { s.late = true }, left(), key())
	b.paused(kindClaim, "u-c", defaultLateness)
	if after, _ := b.reconcile(kindClaim, "u-c"); after < defaultLateness/2 {
		t.Errorf("looks again after %v", after)
	}
	b.told()
	b.called()
	b.forgetsWakes("snapshot/")
	b.drivers.Put(b.dialed)
	b.wakes("claim/u-c", "intents/", "snapshot/")
	b.works(kindClaim, "u-c")
	b.called(asksWith(keyed()), deletes("c", keyed()))

	b = newBench(t, func(s *setup) { s.late, s.Lateness = true, time.Nanosecond }, left(), key())
	b.until("an event", func() bool {
		all, err := b.api.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		return err == nil && len(all.Items) > 0
	})
	b.told(warns("DriverMissing", driverName, "driver d.example has not registered, and may have made a volume"))
	b.sweeps()
	b.open("u-c")

	// One that can make no volumes any more cannot tell either.
	b = newBench(t, func(s *setup) { s.config.Controller.CreateDelete = false }, left(), claim("c"), class())
	b.errs(kindClaim, "u-c", "does not have the capability CREATE_DELETE_VOLUME any more")
	b.called()
	b.sweeps()
	b.open("u-c")
}

// TestADriverGoneMeanwhile: between the decision and the call.
func TestADriverGoneMeanwhile(t *testing.T) {
	b := newBench(t, nil, left(), claim("c"), key())
	b.api.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		b.drivers.Remove(b.dialed)
		return false, nil, nil
	})
	b.errs(kindClaim, "u-c", "create volume pvc-u-c: d.example: driver has gone")
	b.called()
	b.sweeps()
	b.open("u-c")

	b = newBench(t, nil, left(), key())
	b.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
		b.drivers.Remove(b.dialed)
		return csitest.Action{}
	})
	b.errs(kindClaim, "u-c", "undo volume pvc-u-c: d.example: driver has gone")
	b.called(asksWith(keyed()))
	b.sweeps()
	b.open("u-c")
}

// TestAnIntentThatMakesNoSense is an error, not a call.
func TestAnIntentThatMakesNoSense(t *testing.T) {
	for i, text := range []string{"{", `{"driver":"d.example","name":"pvc-victim","claim":{"uid":"u-c"}}`} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			m := left()
			m.Data["u-c"] = text
			b := newBench(t, nil, m, claim("c"), class())
			if _, err := b.reconcile(kindClaim, "u-c"); err == nil {
				t.Error("no error")
			}
			b.called()
			b.wrote()
		})
	}
}

// TestSomethingElseIsWantedMeanwhile: after a no that proves nothing, what it may
// have left is done away with before something else is asked.
func TestSomethingElseIsWantedMeanwhile(t *testing.T) {
	b := newBench(t, nil, claim("c"), class())
	b.fails("CreateVolume", no(codes.Internal), true)
	b.errs(kindClaim, "u-c", "Internal")
	b.fails("CreateVolume", nil, false)
	c := claim("c")
	c.ResourceVersion = "1000"
	c.Spec.Resources.Requests = storage("2Gi")
	b.claims.Wrote(c)
	b.works(kindClaim, "u-c")
	b.called(asksFor("c"), asksFor("c"), deletes("c", nil))
	b.works(kindClaim, "u-c")
	larger := asksFor("c")
	larger.CapacityRange.RequiredBytes = 2 * gib
	b.called(asksFor("c"), asksFor("c"), deletes("c", nil), larger)
	want := plainVolume("c")
	want.Spec.Capacity = storage("2Gi")
	b.volumesAre(want)
}
