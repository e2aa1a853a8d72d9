package page

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/page"
)

const (
	driver = "san.example.com"
	words  = "rpc error: code = ResourceExhausted desc = pool fast has 7 GiB free, and 20 GiB were asked for"
)

// noon is when the scenes are.
func noon(minutes int) metav1.Time {
	return metav1.NewTime(time.Date(2026, 11, 26, 12, minutes, 0, 0, time.UTC))
}

// scene is a control plane that a test changes.
type scene struct {
	client kubernetes.Interface

	mu      sync.Mutex
	changed chan struct{}
}

// change changes objects, and notifies open tabs.
func (s *scene) change(t *testing.T, f func(ctx context.Context, c kubernetes.Interface) error) {
	t.Helper()
	if err := f(t.Context(), s.client); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *scene) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// play serves the page of objects until the test ends, and returns a link to it.
func play(t *testing.T, objects ...runtime.Object) (*scene, string) {
	t.Helper()
	client := clientset.New(objects...)
	s := &scene{client: client, changed: make(chan struct{})}
	p := page.New("127.0.0.1:0", slog.New(slog.DiscardHandler))
	p.Show(page.Plane{
		Objects: func(ctx context.Context) (state.Objects, error) {
			facts := gather.New(client, gather.Options{})
			err := facts.All(ctx, metav1.NamespaceAll)
			return facts.Objects, err
		},
		Changed: s.next, Client: client,
		Usage: func() map[string]page.Usage {
			return map[string]page.Usage{"default/photos": {Used: 3 << 30, Available: 7 << 30}}
		},
		Connected: func() map[string]bool { return map[string]bool{driver: true} },
		Pace:      func() map[string]float64 { return map[string]float64{driver: 0.4} },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, options.PagePath, nil))
	var told options.Invitation
	if err := json.Unmarshal(w.Body.Bytes(), &told); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return s, told.URL
}

// rootOf returns where the pages begin that a link leads to.
func rootOf(link string) string { return link[:strings.LastIndex(link, "/")+1] }

func sized(text string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
}

// town is a control plane with a mounted claim, photos, and one whose driver has no room, backups.
func town() []runtime.Object {
	meta := func(name string, minute int) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), CreationTimestamp: noon(minute),
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "volplane", Time: ptr.To(noon(minute + 1))}},
		}
	}
	objects := []runtime.Object{
		&storagev1.StorageClass{ObjectMeta: meta("fast", 0), Provisioner: driver},
		&storagev1.CSIDriver{ObjectMeta: meta(driver, 0), Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
	}
	for _, name := range []string{"host1", "host2"} {
		objects = append(objects, &corev1.Node{ObjectMeta: meta(name, 0), Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}, &storagev1.CSINode{ObjectMeta: meta(name, 0), Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name}},
		}})
	}
	claim := func(name, size string, minute int) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: meta(name, minute)}
		c.Namespace, c.Spec.StorageClassName = "default", ptr.To("fast")
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		c.Spec.Resources.Requests, c.Status.Phase = sized(size), corev1.ClaimPending
		return c
	}
	photos := claim("photos", "10Gi", 1)
	photos.Spec.VolumeName, photos.Status.Phase, photos.Status.Capacity = "pv-photos", corev1.ClaimBound, sized("10Gi")
	photos.Annotations = map[string]string{volume.AnnBindCompleted: "yes"}
	photos.Status.AccessModes = photos.Spec.AccessModes
	v := &corev1.PersistentVolume{ObjectMeta: meta("pv-photos", 2)}
	v.Spec.AccessModes, v.Spec.Capacity, v.Spec.StorageClassName = photos.Spec.AccessModes, sized("10Gi"), "fast"
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "lun-17"}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "photos", UID: photos.UID}
	v.Status.Phase, v.Status.LastPhaseTransitionTime = corev1.VolumeBound, ptr.To(noon(2))
	p := &corev1.Pod{ObjectMeta: meta("gallery", 3)}
	p.Namespace, p.Spec.NodeName = "default", "host1"
	p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	p.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "photos"}
	p.Status.Conditions = []corev1.PodCondition{{
		Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue, Message: "v=/srv/photos",
		LastTransitionTime: noon(4),
	}}
	backups := claim("backups", "20Gi", 5)
	return append(objects, photos, v, p, backups, warning(backups, volume.ReasonProvisioningFailed, words))
}

// warning is an event about an object of namespace default.
func warning(c *corev1.PersistentVolumeClaim, reason volume.Reason, message string) *corev1.Event {
	e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "e-" + c.Name}}
	e.InvolvedObject = corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID,
	}
	e.Type, e.Reason, e.Message, e.Count = corev1.EventTypeWarning, string(reason), message, 3
	e.Source.Component, e.FirstTimestamp, e.LastTimestamp = "provisioner", noon(6), noon(9)
	return e
}
