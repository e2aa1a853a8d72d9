package attacher

import (
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const (
	driverName = "d.example"
	foreign    = "example.org/foreign"
	ours       = "external-attacher/d-example"
	detachNote = `{"handle":"h","secret":{"name":"s","namespace":"ns"}}`
)

// world is an attacher that does what it is told, with a driver and an API that
// keeps objects only. It hears nothing of what others do after its start.
type world struct {
	t       *testing.T
	client  *kubetest.API
	driver  *csitest.Driver
	drivers *csi.Set
	// served is the driver as the attacher knows it.
	served *csi.Driver
	c      *controller.Controller
}

func newWorld(t *testing.T, o Options, objects ...runtime.Object) *world {
	t.Helper()
	return newWorldWith(t, csitest.Full(), o, objects...)
}

// newWorldWith has another driver.
func newWorldWith(t *testing.T, config csitest.Config, o Options, objects ...runtime.Object) *world {
	t.Helper()
	config.Name = driverName
	w := &world{t: t, client: kubetest.NewAPI(t, objects...), driver: csitest.Start(t, config), drivers: csi.NewSet()}
	w.client.Silence()
	w.driver.OnCall("ControllerPublishVolume", func(int, any) csitest.Action {
		return csitest.Action{
			Answer: &csipb.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": "/dev/x"}},
		}
	})
	w.driver.OnCall("ControllerUnpublishVolume", func(int, any) csitest.Action {
		return csitest.Action{Answer: &csipb.ControllerUnpublishVolumeResponse{}}
	})
	w.served = w.driver.Dial()
	w.drivers.Put(w.served)
	w.start(o)
	return w
}

// start begins another attacher, which knows what the API has now.
func (w *world) start(o Options) {
	w.t.Helper()
	o.Drivers = w.drivers
	w.c = w.client.Begin(func(env controller.Env) *controller.Controller { return New(env, o) }).Controller
}

// refuses has the API answer one kind of request with an error.
func (w *world) refuses(verb, resource string, err error) {
	w.client.Refuse(verb, resource, err)
}

// fails has it look at a key, which must not go well, and returns the error.
func (w *world) fails(kind, name, says string) error {
	w.t.Helper()
	_, err := w.reconcile(kind, name)
	if err == nil || !strings.Contains(err.Error(), says) {
		w.t.Fatalf("ends with %v, wanted: %s", err, says)
	}
	return err
}

// reconcile has it look at a key.
func (w *world) reconcile(kind, name string) (time.Duration, error) {
	w.t.Helper()
	r, err := w.c.Reconcile(w.t.Context(), controller.Key{Kind: kind, Name: name})
	return r.After, err
}

// works has it look at a key, which must go well.
func (w *world) works(kind, name string) time.Duration {
	w.t.Helper()
	after, err := w.reconcile(kind, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return after
}

// called compares all calls that the driver got.
func (w *world) called(want ...proto.Message) {
	w.t.Helper()
	w.driver.Called(want...)
}

// attachment compares the whole attachment with what is wanted.
func (w *world) attachment(want *storagev1.VolumeAttachment) {
	w.t.Helper()
	w.client.Is(want, cmpopts.IgnoreFields(storagev1.VolumeError{}, "Time"))
}

// volume compares the whole volume object with what is wanted.
func (w *world) volume(want *corev1.PersistentVolume) {
	w.t.Helper()
	w.client.Is(want)
}

// written compares the verbs and resources of all that was written, but events.
func (w *world) written(want ...string) {
	w.t.Helper()
	kubetest.Written(w.t, w.client.Clientset, want...)
}

// told waits until these are all events.
func (w *world) told(want ...string) {
	w.t.Helper()
	kubetest.Told(w.t, w.client.Clientset, want...)
}

func secretRef() *corev1.SecretReference { return &corev1.SecretReference{Name: "s", Namespace: "ns"} }

func secret() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"}, Data: map[string][]byte{"key": []byte("value")},
	}
}

func otherSecret() *corev1.Secret {
	s := secret()
	s.Namespace = "other"
	return s
}

func pv(change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pv", UID: "pv-uid", Finalizers: []string{foreign}, Labels: map[string]string{"a": "b"},
	}}
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v.Spec.MountOptions = []string{"noatime"}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "c"}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "h", FSType: "xfs", VolumeAttributes: map[string]string{"pool": "p"},
		ControllerPublishSecretRef: secretRef(),
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func va(change ...func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	name := "pv"
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Name: "va", UID: "va-uid", Finalizers: []string{foreign}, Annotations: map[string]string{"a": "b"},
		},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
		},
	}
	for _, f := range change {
		f(a)
	}
	return a
}

// recorded is an attachment after the driver may have been called.
func recorded(a *storagev1.VolumeAttachment) {
	a.Finalizers = append(a.Finalizers, ours)
	a.Annotations[volume.AnnNodeID], a.Annotations[volume.AnnDetach] = "id-n1", detachNote
}

func attached(a *storagev1.VolumeAttachment) {
	a.Status.Attached, a.Status.AttachmentMetadata = true, map[string]string{"device": "/dev/x"}
}

func going(a *storagev1.VolumeAttachment) {
	a.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
}

// failed is an attachment that says why it is not attached.
func failed(message string, code *int32) func(*storagev1.VolumeAttachment) {
	return func(a *storagev1.VolumeAttachment) {
		a.Status.AttachError = &storagev1.VolumeError{Message: message, ErrorCode: code}
	}
}

// stuck is an attachment that says why it is not detached.
func stuck(message string) func(*storagev1.VolumeAttachment) {
	return func(a *storagev1.VolumeAttachment) { a.Status.DetachError = &storagev1.VolumeError{Message: message} }
}

// kept is a volume object that waits for its detach.
func kept(v *corev1.PersistentVolume) { v.Finalizers = append(v.Finalizers, ours) }

func dying(v *corev1.PersistentVolume) { v.DeletionTimestamp = va(going).DeletionTimestamp }

func csiNode() *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Spec.Drivers = []storagev1.CSINodeDriver{
		{Name: "other.example", NodeID: "wrong"}, {Name: driverName, NodeID: "id-n1"},
	}
	return n
}

func node() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}} }

func publishRequest() *csipb.ControllerPublishVolumeRequest {
	mount := &csipb.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime"}}
	return &csipb.ControllerPublishVolumeRequest{
		VolumeId: "h", NodeId: "id-n1", Secrets: map[string]string{"key": "value"},
		VolumeContext: map[string]string{"pool": "p"},
		VolumeCapability: &csipb.VolumeCapability{
			AccessType: &csipb.VolumeCapability_Mount{Mount: mount},
			AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		},
	}
}

func unpublishRequest() *csipb.ControllerUnpublishVolumeRequest {
	return &csipb.ControllerUnpublishVolumeRequest{
		VolumeId: "h", NodeId: "id-n1", Secrets: map[string]string{"key": "value"},
	}
}
