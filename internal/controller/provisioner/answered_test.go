package provisioner

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const madeNo = "ProvisioningFailed"

func no(code codes.Code) error { return status.Error(code, "no") }

func warns(reason, next, words string) [5]string {
	return [5]string{"Warning", reason, "c", next, words}
}

func notes(reason, next, words string) [5]string {
	return [5]string{"Normal", reason, "c", next, words}
}

// until has it look at the claim, as often as it takes for what has to wait.
func (b *bench) until(words string, done func() bool) {
	b.t.Helper()
	kubetest.Eventually(b.t, func() string {
		if _, _ = b.reconcile(kindClaim, "u-c"); done() {
			return ""
		}
		return words
	})
}

// hasPaused says that something was not repeated at once: however slow the machine
// is, it can only make a pause longer.
func (b *bench) hasPaused(since time.Time) {
	b.t.Helper()
	if after := time.Since(since); after < firstPause {
		b.t.Errorf("repeated after %v", after)
	}
}

func (b *bench) calls(n int) func() bool {
	return func() bool { return len(b.driver.Calls()) >= n }
}

// TestAfterEachAnswer: a code of each kind decides whether the intent stays; whatever
// it is, the same is asked again only after a pause, and then nothing is made twice.
// All codes are in the table of internal/decide/provision.
func TestAfterEachAnswer(t *testing.T) {
	t.Parallel()
	for code, c := range map[codes.Code]struct {
		stays bool
		next  string
	}{
		codes.InvalidArgument: {false, "user"}, codes.AlreadyExists: {false, "user"},
		codes.Internal: {true, driverName}, codes.Unavailable: {true, driverName},
	} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nil, claim("c"), class())
			b.fails("CreateVolume", no(code), c.stays)
			begun := time.Now()
			b.errs(kindClaim, "u-c", "create volume pvc-u-c: rpc error: code = "+code.String())
			b.told(warns(madeNo, c.next, "driver d.example made no volume: "+code.String()+": no"))
			b.called(asksFor("c"))
			b.sweeps()
			if c.stays {
				b.open("u-c")
			} else {
				b.open()
			}
			b.fails("CreateVolume", nil, false)
			b.until("a second call", b.calls(2))
			b.hasPaused(begun)
			b.called(asksFor("c"), asksFor("c"))
			b.volumesAre(plainVolume("c"))
		})
	}
}

// TestAResolvedIntentIsSweptLater, but at once if an earlier life has left it.
func TestAResolvedIntentIsSweptLater(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil, claim("c"), class())
	b.forgetsWakes("snapshot/")
	begun := time.Now()
	b.fails("CreateVolume", no(codes.InvalidArgument), false)
	b.errs(kindClaim, "u-c", "InvalidArgument")
	b.forgetsWakes("intents/")
	if after := time.Since(begun); after < sweepPause {
		t.Errorf("swept after %v", after)
	}
	b.open("u-c")
	if err := b.closing(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.open()
}

// TestAFullNode: where a node was chosen, another one is looked for, and the rest
// of the claim stays as it is.
func TestAFullNode(t *testing.T) {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	chosen := func() *corev1.PersistentVolumeClaim {
		c := claim("c")
		c.Labels, c.Finalizers, c.Annotations[volume.AnnSelectedNode] = map[string]string{"a": "b"}, []string{foreign}, "n-b"
		return c
	}
	immediate := chosen()
	delete(immediate.Annotations, volume.AnnSelectedNode)
	n, csiNode := node("n-b", "b")
	b := newBench(t, func(s *setup) { s.config.Plugin.AccessibilityConstraints = true }, immediate, class(), n, csiNode)
	b.fails("CreateVolume", no(codes.ResourceExhausted), false)
	b.errs(kindClaim, "u-c", "ResourceExhausted")
	b.wrote("create configmaps volplane-intents-1")
	for name, one := range map[string]struct {
		code    codes.Code
		zonal   bool
		selects bool
		taken   bool
		refused string
	}{
		"full":                          {codes.ResourceExhausted, true, false, true, ""},
		"full, which placement may ask": {codes.ResourceExhausted, true, true, true, "n-b"},
		"something else":                {codes.InvalidArgument, true, true, false, ""},
		"all nodes reach the room":      {codes.ResourceExhausted, false, true, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cl := class()
			cl.VolumeBindingMode = &late
			n, csiNode := node("n-b", "b")
			b := newBench(t, func(s *setup) {
				s.config.Plugin.AccessibilityConstraints, s.Selects = one.zonal, one.selects
			}, chosen(), n, csiNode)
			if err := b.api.Tracker().Add(cl); err != nil {
				t.Fatal(err)
			}
			b.restart()
			b.fails("CreateVolume", no(one.code), false)
			b.errs(kindClaim, "u-c", one.code.String())
			want := chosen()
			if one.taken {
				delete(want.Annotations, volume.AnnSelectedNode)
			}
			if one.refused != "" {
				want.Annotations[volume.AnnRefusedOn] = one.refused
			}
			b.claimIs(want)
			b.sweeps()
			b.open()
			if got, _ := b.claims.Get("ns/c"); got.Annotations[volume.AnnSelectedNode] !=
				want.Annotations[volume.AnnSelectedNode] {
				t.Error("it does not know what it wrote")
			}
		})
	}
	// What was not written is not forgotten.
	cl := class()
	cl.VolumeBindingMode = &late
	b = newBench(t, func(s *setup) { s.config.Plugin.AccessibilityConstraints = true }, chosen(), n, csiNode, cl)
	b.fails("CreateVolume", no(codes.ResourceExhausted), false)
	b.api.Refuse("update", "persistentvolumeclaims", errLost)
	b.errs(kindClaim, "u-c", "update claim ns/c: the answer is lost")
	b.sweeps()
	b.open("u-c")
}

// TestANodeThatCannotHaveIt is taken from the claim, and if it is chosen again, only
// after a pause.
func TestANodeThatCannotHaveIt(t *testing.T) {
	c := claim("c")
	c.Annotations[volume.AnnSelectedNode] = "nowhere"
	b := newBench(t, func(s *setup) { s.config.Plugin.AccessibilityConstraints = true }, c, class())
	begun := time.Now()
	b.works(kindClaim, "u-c")
	want := claim("c")
	b.claimIs(want)
	b.called()
	b.wrote("update persistentvolumeclaims c")
	b.told(warns(madeNo, "placement", "nowhere"))
	got, err := b.api.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got.Annotations[volume.AnnSelectedNode] = "nowhere"
	if got, err = b.api.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), got,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.claims.Wrote(got)
	b.until("it is taken again", func() bool {
		c, _ := b.claims.Get("ns/c")
		return c.Annotations[volume.AnnSelectedNode] == ""
	})
	b.hasPaused(begun)
}

// TestAnAnswerThatMustNotBecomeAVolume: what is ours alone is deleted, with the
// Secret by which it was made, and nothing is left; what may be another's stays, and so
// does the intent, because the driver may have made ours, too.
func TestAnAnswerThatMustNotBecomeAVolume(t *testing.T) {
	taken := plainVolume("other")
	taken.Spec.CSI.VolumeHandle = "id-pvc-u-c"
	elsewhere := taken.DeepCopy()
	elsewhere.Name, elsewhere.Spec.CSI.Driver = "elsewhere", "other.example"
	for name, one := range map[string]struct {
		answer  *csipb.Volume
		objects []runtime.Object
		words   string
		deleted bool
	}{
		"too small": {
			&csipb.Volume{VolumeId: "id-pvc-u-c", CapacityBytes: gib - 1}, nil, "made a volume of 1073741823 bytes", true,
		},
		"another's": {&csipb.Volume{
			VolumeId: "id-pvc-u-c", CapacityBytes: gib,
		}, []runtime.Object{taken, elsewhere}, "answered with the id of volume pvc-u-other", false},
		"of another": {&csipb.Volume{VolumeId: "id-pvc-u-c", CapacityBytes: gib}, []runtime.Object{elsewhere}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, append(one.objects, claim("c"), key())...)
			if err := b.api.Tracker().Add(classOf("provisioner")); err != nil {
				t.Fatal(err)
			}
			b.restart()
			b.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
				return csitest.Action{Answer: &csipb.CreateVolumeResponse{Volume: one.answer}}
			})
			if one.words == "" {
				b.works(kindClaim, "u-c")
				return
			}
			begun := time.Now()
			b.errs(kindClaim, "u-c", one.words)
			b.told(warns(madeNo, driverName, one.words))
			want := asksFor("c")
			want.Parameters, want.Secrets, want.VolumeCapabilities = map[string]string{"pool": "p"}, keyed(),
				[]*csipb.VolumeCapability{capability("xfs", "noatime", "discard")}
			all, written, left := []proto.Message{want}, []string{"create configmaps volplane-intents-1"}, []string{"u-c"}
			if one.deleted {
				all, left = append(all, deletes("c", keyed())), nil
				written = append(written, "delete configmaps volplane-intents-1")
			}
			b.called(all...)
			b.sweeps()
			b.open(left...)
			b.wrote(written...)
			b.until("it is tried again", b.calls(len(all)+1))
			b.hasPaused(begun)
		})
	}
}

// TestWhatCannotBeDeletedIsNotForgotten: the intent stays until it is.
func TestWhatCannotBeDeletedIsNotForgotten(t *testing.T) {
	b := newBench(t, nil, claim("c"), class())
	b.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
		return csitest.Action{
			Answer: &csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: "id-pvc-u-c", CapacityBytes: 1}},
		}
	})
	b.fails("DeleteVolume", no(codes.FailedPrecondition), false)
	b.errs(kindClaim, "u-c", "delete volume id-pvc-u-c: rpc error: code = FailedPrecondition")
	b.sweeps()
	b.open("u-c")
	b.told(warns(madeNo, driverName, "1 bytes"), warns("ProvisioningCleanupFailed", "user",
		"what driver d.example made as volume pvc-u-c is not deleted yet: FailedPrecondition: no"))
	b.fails("DeleteVolume", nil, false)
	b.errs(kindClaim, "u-c", "1 bytes")
	b.sweeps()
	b.open()
	b.called(asksFor("c"), deletes("c", nil), asksFor("c"), deletes("c", nil))
}

// TestWhatBecomesOfTheObject: a volume whose object cannot be saved is deleted, one
// whose object may be there is looked at, and another's is left.
func TestWhatBecomesOfTheObject(t *testing.T) {
	another := plainVolume("c")
	another.Spec.CSI.VolumeHandle = "another"
	unowned := plainVolume("c")
	unowned.Spec.ClaimRef.UID = "u-another"
	for i, one := range []struct {
		refuses error
		there   *corev1.PersistentVolume
		words   string
		// deleted says that the driver's volume is, stays that the intent does.
		deleted, stays bool
	}{
		{
			refuses: apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PersistentVolume").GroupKind(), "pvc-u-c", nil),
			words:   "the volume object is refused", deleted: true,
		},
		{refuses: errLost, words: "create volume pvc-u-c: the answer is lost", stays: true},
		{there: plainVolume("c")},
		{there: another, words: "another volume object has the name pvc-u-c", deleted: true},
		{there: unowned, words: "another volume object has the name pvc-u-c"},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			b := newBench(t, nil, claim("c"), class())
			if one.refuses != nil {
				b.api.Refuse("create", "persistentvolumes", one.refuses)
			}
			if one.there != nil {
				if err := b.api.Tracker().Add(one.there); err != nil {
					t.Fatal(err)
				}
			}
			if one.words == "" {
				b.works(kindClaim, "u-c")
			} else {
				b.errs(kindClaim, "u-c", one.words)
			}
			all := []proto.Message{asksFor("c")}
			if one.deleted {
				all = append(all, deletes("c", nil))
			}
			b.called(all...)
			b.sweeps()
			if one.stays {
				b.open("u-c")
				b.told(warns(madeNo, "", "volume object is not saved yet: create volume pvc-u-c: the answer is lost"))
				return
			}
			b.open()
			if one.words != "" {
				b.told(warns(madeNo, driverName, one.words))
			}
		})
	}
}

// TestTheObjectThatIsThereCannotBeRead: nothing is decided.
func TestTheObjectThatIsThereCannotBeRead(t *testing.T) {
	b := newBench(t, nil, claim("c"), class())
	if err := b.api.Tracker().Add(plainVolume("c")); err != nil {
		t.Fatal(err)
	}
	b.api.Refuse("get", "persistentvolumes", errLost)
	b.errs(kindClaim, "u-c", "look at volume pvc-u-c: the answer is lost")
	b.sweeps()
	b.open("u-c")
	b.called(asksFor("c"))
}

// TestAWriteWhoseAnswerIsLost: the object is there, and the driver's volume stays.
func TestAWriteWhoseAnswerIsLost(t *testing.T) {
	b := newBench(t, nil, claim("c"), class())
	b.api.PrependReactor("create", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if err := b.api.Tracker().Add(a.(clienttesting.CreateActionImpl).GetObject()); err != nil {
			return true, nil, fmt.Errorf("%w: %w",
				apierrors.NewAlreadyExists(corev1.Resource("persistentvolumes"), "pvc-u-c"), err)
		}
		return true, nil, errLost
	})
	b.errs(kindClaim, "u-c", "the answer is lost")
	b.works(kindClaim, "u-c")
	b.called(asksFor("c"), asksFor("c"))
	b.volumesAre(plainVolume("c"))
	b.sweeps()
	b.open()
}

// TestAnIntentThatCannotBeWritten: then the driver is not called.
func TestAnIntentThatCannotBeWritten(t *testing.T) {
	b := newBench(t, nil, claim("c"), class())
	b.api.Refuse("create", "configmaps", errLost)
	if _, err := b.reconcile(kindClaim, "u-c"); err == nil {
		t.Error("no error")
	}
	b.called()

	b = newBench(t, nil, claim("c"), class())
	b.api.Refuse("list", "configmaps", errLost)
	for _, kind := range []string{kindClaim, kindLog, kindSnapshot} {
		b.errs(kind, "u-c", "the answer is lost")
	}
	b.called()
}

// TestAHandleThatIsBeingSaved belongs to whom it is saved for first.
func TestAHandleThatIsBeingSaved(t *testing.T) {
	p := &provisioner{volumes: kube.Writer[*corev1.PersistentVolume]{Cache: newBench(t, nil).volumes}}
	first, second := &provision.Intent{Driver: driverName, Name: "first"},
		&provision.Intent{Driver: driverName, Name: "second"}
	taken, release := p.holdHandle(first, "h")
	if taken != "" {
		t.Errorf("taken by %s", taken)
	}
	if taken, none := p.holdHandle(second, "h"); taken != "first" {
		t.Errorf("taken by %q", taken)
	} else {
		none()
	}
	if taken, _ := p.holdHandle(second, "another"); taken != "" {
		t.Errorf("another one is taken by %q", taken)
	}
	if taken, _ := p.holdHandle(second, "h"); taken != "first" {
		t.Errorf("who did not have it gave it back: %q", taken)
	}
	release()
	if taken, _ := p.holdHandle(second, "h"); taken != "" {
		t.Errorf("taken by %q", taken)
	}
}

// TestAHandleThatIsSavedAndNotSeenYet: a driver that gives one id to two claims
// gives neither the other's data, however late the first object is seen.
func TestAHandleThatIsSavedAndNotSeenYet(t *testing.T) {
	b := newBench(t, nil, claim("c"), claim("d"), class())
	b.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
		return csitest.Action{Answer: &csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: "h", CapacityBytes: gib}}}
	})
	b.works(kindClaim, "u-c")
	b.errs(kindClaim, "u-d", "driver d.example answered with the id of volume pvc-u-c, which exists already")
	want := plainVolume("c")
	want.Spec.CSI.VolumeHandle, want.Spec.CSI.VolumeAttributes = "h", nil
	b.volumesAre(want)
	b.called(asksFor("c"), asksFor("d"))
}

// TestAnIdIsGivenBack: when what had it is deleted, the driver may give it to
// another volume.
func TestAnIdIsGivenBack(t *testing.T) {
	for name, one := range map[string]struct {
		// bytes is how large the first volume is, objects what else there is.
		bytes   int64
		objects []runtime.Object
		words   string
	}{
		"too small": {1, []runtime.Object{claim("c")}, "made a volume of 1 bytes"},
		"not saved": {gib, []runtime.Object{claim("c")}, "the volume object is refused"},
		"undone":    {gib, []runtime.Object{left(), key()}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, append(one.objects, claim("d"), class())...)
			b.api.PrependReactor("create", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
				refused := a.(clienttesting.CreateActionImpl).GetObject().(*corev1.PersistentVolume).Name == "pvc-u-c"
				return refused, nil, apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "pvc-u-c", errLost)
			})
			answer := &csipb.Volume{VolumeId: "h", CapacityBytes: one.bytes}
			b.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
				return csitest.Action{Answer: &csipb.CreateVolumeResponse{Volume: answer}}
			})
			if one.words == "" {
				b.works(kindClaim, "u-c")
			} else {
				b.errs(kindClaim, "u-c", one.words)
			}
			answer = &csipb.Volume{VolumeId: "h", CapacityBytes: gib}
			b.works(kindClaim, "u-d")
			want := plainVolume("d")
			want.Spec.CSI.VolumeHandle, want.Spec.CSI.VolumeAttributes = "h", nil
			b.volumesAre(want)
		})
	}
}
