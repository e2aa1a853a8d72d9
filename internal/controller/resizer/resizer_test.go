package resizer

import (
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/resize"
)

const gib = 1 << 30

// TestGrow: the driver is asked for what the claim wants, with all that it must
// know; then the volume has its size, and the node's half or the end is in the
// claim. Nothing else of either object changes.
func TestGrow(t *testing.T) {
	for name, c := range map[string]struct {
		answer func() csitest.Action
		size   string
		node   bool
	}{
		"and the node goes on":   {grown(2*gib, true), "2Gi", true},
		"and it is done":         {grown(2*gib, false), "2Gi", false},
		"by more than was asked": {grown(3*gib, true), "3Gi", true},
		"and says no size":       {grown(0, true), "2Gi", true},
	} {
		t.Run(name, func(t *testing.T) {
			claim, pv := bound()
			w := newWorld(t, c.answer, claim, pv, secret())
			if after, err := w.reconcile(); err != nil || after != 0 {
				t.Fatal(after, err)
			}
			w.called(request(2 * gib))
			size := resource.MustParse(c.size)
			want := resize.Finished(resize.Begun(claim, resource.MustParse("2Gi"), metav1.Now()), size)
			if c.node {
				want = resize.Handed(resize.Begun(claim, resource.MustParse("2Gi"), metav1.Now()), size, metav1.Now())
			}
			grownTo := pv.DeepCopy()
			grownTo.Spec.Capacity[corev1.ResourceStorage] = size
			w.are(want, grownTo)
		})
	}
}

// TestGrowBlock: a raw device has no filesystem to tell of.
func TestGrowBlock(t *testing.T) {
	claim, pv := bound(func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
		v.Spec.VolumeMode, v.Spec.CSI.ControllerExpandSecretRef = ptr.To(corev1.PersistentVolumeBlock), nil
	})
	w := newWorld(t, grown(2*gib, false), claim, pv)
	if _, err := w.reconcile(); err != nil {
		t.Fatal(err)
	}
	want := request(2 * gib)
	want.Secrets = nil
	want.VolumeCapability.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
	w.called(want)
}

// TestNotAsked: whose volume it is not, who asks for nothing, and what nobody can
// do, never reach the driver, and change nothing.
func TestNotAsked(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume){
		"another claim's volume": func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
			v.Spec.ClaimRef.UID = "other"
		},
		"nobody's volume": func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = nil
		},
		"a volume of another name": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.VolumeName = "else"
		},
		"a claim that is not bound": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Status.Phase = corev1.ClaimPending
		},
		"the size that it has": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.Resources.Requests = storage("1Gi")
		},
		"another driver's volume": func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
			v.Spec.CSI.Driver = "other.example"
		},
		"a volume that is no driver's": func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
			v.Spec.CSI = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim, pv := bound(change)
			w := newWorld(t, grown(2*gib, true), claim, pv, secret())
			if after, err := w.reconcile(); err != nil || after != 0 {
				t.Error(after, err)
			}
			w.called()
			w.are(claim, pv)
		})
	}
}

// TestSecretIsMissing: the driver is not asked without what it needs.
func TestSecretIsMissing(t *testing.T) {
	claim, pv := bound()
	w := newWorld(t, grown(2*gib, true), claim, pv)
	if _, err := w.reconcile(); err == nil || !strings.Contains(err.Error(), "ns/s") {
		t.Errorf("%v", err)
	}
	w.called()
}

// TestImpossibleSize is left alone for a while, and the claim says why; the volume
// keeps its size.
func TestImpossibleSize(t *testing.T) {
	claim, pv := bound()
	w := newWorld(t, func() csitest.Action { return csitest.Action{Err: status.Error(codes.OutOfRange, "never")} },
		claim, pv, secret())
	for range 2 {
		if after, err := w.reconcile(); err != nil || after <= 0 || after > infeasiblePause {
			t.Fatal(after, err)
		}
		w.sees(resize.Infeasible)
	}
	w.called(request(2 * gib))
	size := resource.MustParse("2Gi")
	w.are(resize.Impossible(resize.Begun(claim, size, metav1.Now()), size, "OutOfRange: never", metav1.Now()), pv)
}

// TestSmallerAfterARefusal: after a final no the volume is what it was, so a
// smaller request is asked for; after an answer that leaves it open, or a success
// that could not be written down, what was asked for comes first.
func TestSmallerAfterARefusal(t *testing.T) {
	for name, c := range map[string]struct {
		answers []codes.Code
		second  int64
	}{
		"a final no":                   {[]codes.Code{codes.ResourceExhausted}, 3 * gib / 2},
		"an open end":                  {[]codes.Code{codes.DeadlineExceeded}, 2 * gib},
		"an open end after a final no": {[]codes.Code{codes.ResourceExhausted, codes.DeadlineExceeded}, 2 * gib},
		"a final no after an open end": {[]codes.Code{codes.DeadlineExceeded, codes.ResourceExhausted}, 3 * gib / 2},
		"a success after a final no":   {[]codes.Code{codes.ResourceExhausted, codes.OK}, 2 * gib},
	} {
		t.Run(name, func(t *testing.T) {
			claim, pv := bound()
			calls := 0
			w := newWorld(t, func() csitest.Action {
				if calls++; calls > len(c.answers) || c.answers[calls-1] == codes.OK {
					return grown(0, false)()
				}
				return csitest.Action{Err: status.Error(c.answers[calls-1], "no")}
			}, claim, pv, secret())
			w.client.PrependReactor("update", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return calls <= len(c.answers), nil, errNotNow
			})
			want := resize.Begun(claim, resource.MustParse("2Gi"), metav1.Now())
			var asked []proto.Message
			for _, code := range c.answers {
				if _, err := w.reconcile(); err == nil {
					t.Fatal("it went well")
				}
				if code != codes.OK {
					want = resize.Refused(want, code.String()+": no", metav1.Now())
				}
				asked = append(asked, request(2*gib))
			}
			w.are(want, pv)
			want.Spec.Resources.Requests = storage("1536Mi")
			if _, err := w.client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), want,
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.sees(func(c *corev1.PersistentVolumeClaim) bool {
				return c.Spec.Resources.Requests.Storage().String() == "1536Mi"
			})
			w.works()
			w.called(append(asked, request(c.second))...)
		})
	}
}
