package resizer

import (
	"context"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
)

const driverName = "d.example"

// world is a resizer that does what it is told, with a driver and an API that
// keeps objects only.
type world struct {
	t       *testing.T
	client  *kubetest.API
	driver  *csitest.Driver
	drivers *csi.Set
	claims  *kube.Cache[*corev1.PersistentVolumeClaim]
	process *kubetest.Process
	c       *controller.Controller
	// served is the driver as the resizer knows it.
	served *csi.Driver
	// register has the driver appear.
	register func()
}

// newWorld has the driver answer by what answer returns.
func newWorld(t *testing.T, answer func() csitest.Action, objects ...runtime.Object) *world {
	t.Helper()
	w := newWorldWith(t, csitest.Full(), answer, objects...)
	w.register()
	return w
}

// newWorldWith has another driver, which is not there yet.
func newWorldWith(t *testing.T, config csitest.Config, answer func() csitest.Action, objects ...runtime.Object) *world {
	t.Helper()
	config.Name = driverName
	w := &world{t: t, client: kubetest.NewAPI(t, objects...), driver: csitest.Start(t, config), drivers: csi.NewSet()}
	w.driver.OnCall("ControllerExpandVolume", func(int, any) csitest.Action { return answer() })
	w.served = w.driver.Dial()
	w.register = func() { w.drivers.Put(w.served) }
	w.start()
	return w
}

// start begins another resizer, which knows what the API has now.
func (w *world) start() {
	w.t.Helper()
	w.process = w.client.Begin(func(env controller.Env) *controller.Controller {
		w.claims = env.Caches.Claims()
		return New(env, w.drivers)
	})
	w.c = w.process.Controller
}

// quiet begins another resizer, that hears nothing of what others do.
func (w *world) quiet() {
	w.t.Helper()
	w.client.Silence()
	w.start()
}

// works has it look at the claim, which must go well.
func (w *world) works() time.Duration {
	w.t.Helper()
	after, err := w.reconcile()
	if err != nil {
		w.t.Fatal(err)
	}
	return after
}

// fails has it look at the claim, which must not go well.
func (w *world) fails(says string) {
	w.t.Helper()
	if _, err := w.reconcile(); err == nil || !strings.Contains(err.Error(), says) {
		w.t.Fatalf("ends with %v, wanted: %s", err, says)
	}
}

func (w *world) reconcile() (time.Duration, error) {
	w.t.Helper()
	r, err := w.c.Reconcile(w.t.Context(), controller.Key{Kind: "claim", Namespace: "ns", Name: "claim"})
	return r.After, err
}

// run has it work by itself until the test ends.
func (w *world) run() { w.process.Work() }

// told waits for an event at the claim.
func (w *world) told(reason, text string) {
	w.t.Helper()
	kubetest.Eventually(w.t, func() string {
		all, err := w.client.CoreV1().Events("ns").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for i := range all.Items {
			if e := &all.Items[i]; e.InvolvedObject.Name == "claim" && e.Reason == reason && strings.Contains(e.Message, text) {
				return ""
			}
		}
		return "event " + reason + ": " + text
	})
}

// sees waits until the resizer knows of a change of the claim.
func (w *world) sees(has func(*corev1.PersistentVolumeClaim) bool) {
	w.t.Helper()
	kubetest.Eventually(w.t, func() string {
		if c, ok := w.claims.Get("ns/claim"); ok && has(c) {
			return ""
		}
		return "the claim does not change"
	})
}

// written compares the verbs and resources of all that was written, but events.
func (w *world) written(want ...string) {
	w.t.Helper()
	kubetest.Written(w.t, w.client.Clientset, want...)
}

// events waits until these are all events.
func (w *world) events(want ...string) {
	w.t.Helper()
	kubetest.Told(w.t, w.client.Clientset, want...)
}

// grown is an answer of the driver.
func grown(bytes int64, node bool) func() csitest.Action {
	return func() csitest.Action {
		return csitest.Action{
			Answer: &csipb.ControllerExpandVolumeResponse{CapacityBytes: bytes, NodeExpansionRequired: node},
		}
	}
}

// called compares all calls that the driver got.
func (w *world) called(want ...proto.Message) {
	w.t.Helper()
	w.driver.Called(want...)
}

func whole() cmp.Options {
	return cmp.Options{
		cmpopts.IgnoreFields(corev1.PersistentVolumeClaimCondition{}, "LastTransitionTime", "LastProbeTime"),
		cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }),
	}
}

// are compares the whole claim and the whole volume with what is wanted.
func (w *world) are(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
	w.t.Helper()
	w.client.Is(claim, whole())
	w.client.Is(pv, whole())
}

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// bound is a claim of 1Gi that wants 2Gi, and its volume.
func bound(
	change ...func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume),
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "claim", UID: "c", Labels: map[string]string{"a": "b"},
		Finalizers: []string{"example.org/foreign"},
	}}
	c.Spec.VolumeName, c.Spec.Resources.Requests = "pv", storage("2Gi")
	c.Status = corev1.PersistentVolumeClaimStatus{
		Phase: corev1.ClaimBound, Capacity: storage("1Gi"),
		Conditions: []corev1.PersistentVolumeClaimCondition{
			{Type: "example.org/Foreign", Status: corev1.ConditionTrue, Message: "theirs"},
		},
	}
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "v", Finalizers: []string{"example.org/foreign"}},
	}
	v.Spec.Capacity, v.Spec.AccessModes = storage("1Gi"), []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v.Spec.MountOptions, v.Spec.PersistentVolumeReclaimPolicy = []string{"noatime"}, corev1.PersistentVolumeReclaimRetain
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "c"}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "h", FSType: "xfs", VolumeAttributes: map[string]string{"pool": "p"},
		ControllerExpandSecretRef: &corev1.SecretReference{Namespace: "ns", Name: "s"},
	}
	for _, f := range change {
		f(c, v)
	}
	return c, v
}

func secret() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"key": []byte("value")},
	}
}

func otherSecret() *corev1.Secret {
	s := secret()
	s.Namespace = "other"
	return s
}

func request(bytes int64) *csipb.ControllerExpandVolumeRequest {
	return &csipb.ControllerExpandVolumeRequest{
		VolumeId: "h", Secrets: map[string]string{"key": "value"}, CapacityRange: &csipb.CapacityRange{RequiredBytes: bytes},
		VolumeCapability: &csipb.VolumeCapability{
			AccessType: &csipb.VolumeCapability_Mount{
				Mount: &csipb.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime"}},
			},
			AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		},
	}
}
