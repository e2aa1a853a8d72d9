package attacher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const loopDriver = "test.csi.example.com"

// loop is an attacher over an API that keeps objects only.
type loop struct {
	*testing.T
	client *kubetest.API
}

// newLoop starts an attacher.
func newLoop(t *testing.T, drivers *csi.Set, objects ...runtime.Object) *loop {
	t.Helper()
	return newLoopWith(t, Options{Drivers: drivers}, objects...)
}

func newLoopWith(t *testing.T, o Options, objects ...runtime.Object) *loop {
	t.Helper()
	w := &loop{T: t, client: kubetest.NewAPI(t, objects...)}
	w.client.Begin(func(env controller.Env) *controller.Controller { return New(env, o) }).Work()
	return w
}

// serving returns a driver that attaches whatever it is asked to, when answer
// returns.
func serving(t *testing.T, answer func(r *csipb.ControllerPublishVolumeRequest)) (*csi.Set, *csitest.Driver) {
	t.Helper()
	config := csitest.Full()
	config.Controller.ListVolumesPublishedNodes = false
	d := csitest.Start(t, config)
	d.OnCall("ControllerPublishVolume", func(_ int, req any) csitest.Action {
		answer(req.(*csipb.ControllerPublishVolumeRequest))
		return csitest.Action{Answer: &csipb.ControllerPublishVolumeResponse{}}
	})
	drivers := csi.NewSet()
	drivers.Put(d.Dial())
	return drivers, d
}

func volumeOf(name string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("u-" + name)}}
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: loopDriver, VolumeHandle: "h-" + name}
	return v
}

// leaving is a volume object that is deleted, and that nothing but the attacher
// keeps.
func leaving(name string) *corev1.PersistentVolume {
	v := volumeOf(name)
	now := metav1.Now()
	v.DeletionTimestamp, v.Finalizers = &now, []string{volume.AttacherFinalizer(loopDriver)}
	return v
}

func attachmentOf(volumeName, node string) *storagev1.VolumeAttachment {
	name := attach.NameOf(loopDriver, "h-"+volumeName, node)
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("u-" + name)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: loopDriver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volumeName},
		},
	}
}

func nodeOf(name string) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: loopDriver, NodeID: "id-" + name}},
	}}
}

// is waits until an attachment has a status.
func (w *loop) is(va *storagev1.VolumeAttachment, what string, has func(storagev1.VolumeAttachmentStatus) bool) {
	w.Helper()
	kubetest.Eventually(w, func() string {
		got, err := w.client.StorageV1().VolumeAttachments().Get(context.Background(), va.Name, metav1.GetOptions{})
		if err != nil || !has(got.Status) {
			return fmt.Sprintf("%s of node %s: %+v, %v", what, va.Spec.NodeName, got, err)
		}
		return ""
	})
}

func isAttached(s storagev1.VolumeAttachmentStatus) bool { return s.Attached && s.AttachError == nil }

// letGo waits until a volume's object is gone, which nothing but the attacher has kept.
func (w *loop) letGo(name string) {
	w.Helper()
	kubetest.Eventually(w, func() string {
		v, err := w.client.CoreV1().PersistentVolumes().Get(context.Background(), name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Sprint("the volume's object is let go: ", v.Finalizers, err)
		}
		return ""
	})
}

// TestNodeWithoutItsObject: an attachment for it says what is missing, others go
// on, and it is attached when the object comes (S1-016).
func TestNodeWithoutItsObject(t *testing.T) {
	bare, other := attachmentOf("a", "n1"), attachmentOf("b", "n2")
	drivers, _ := serving(t, func(*csipb.ControllerPublishVolumeRequest) {})
	w := newLoop(t, drivers, volumeOf("a"), volumeOf("b"), bare, other, nodeOf("n2"))
	w.is(bare, "the error", func(s storagev1.VolumeAttachmentStatus) bool {
		return !s.Attached && s.AttachError != nil &&
			s.AttachError.Message == "driver "+loopDriver+" has not registered on node n1"
	})
	w.is(other, "attached", isAttached)
	if _, err := w.client.StorageV1().CSINodes().Create(context.Background(), nodeOf("n1"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.is(bare, "attached", isAttached)
}

// TestVolumesBesideAttachments: while a driver works on an attachment, another
// one is made, and a volume object is let go (S3-023).
func TestVolumesBesideAttachments(t *testing.T) {
	called, open := make(chan struct{}), make(chan struct{})
	var once sync.Once
	drivers, _ := serving(t, func(r *csipb.ControllerPublishVolumeRequest) {
		if r.GetVolumeId() == "h-slow" {
			once.Do(func() { close(called) })
			<-open
		}
	})
	slow, quick := attachmentOf("slow", "n1"), attachmentOf("quick", "n1")
	w := newLoop(t, drivers, volumeOf("slow"), volumeOf("quick"), volumeOf("old"), slow, nodeOf("n1"))
	<-called
	ctx := context.Background()
	if _, err := w.client.StorageV1().VolumeAttachments().Create(ctx, quick, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.client.Put(leaving("old"))
	w.is(quick, "attached", isAttached)
	w.letGo("old")
	close(open)
	w.is(slow, "attached", isAttached)
}

// TestGoneWithoutDetach: an attachment that somebody takes away by force is detached
// as it said that it is to be, and its volume's object, which is deleted meanwhile,
// is let go after that.
func TestGoneWithoutDetach(t *testing.T) {
	gone := attachmentOf("a", "n1")
	gone.Finalizers = []string{volume.AttacherFinalizer(loopDriver)}
	gone.Annotations = map[string]string{volume.AnnNodeID: "id-of-then", volume.AnnDetach: `{"handle":"h-a"}`}
	gone.Status.Attached = true
	kept := leaving("a")
	kept.DeletionTimestamp = nil
	drivers, d := serving(t, func(*csipb.ControllerPublishVolumeRequest) {})
	w := newLoop(t, drivers, kept, gone, nodeOf("n1"))
	d.OnCall("ControllerUnpublishVolume", func(int, any) csitest.Action {
		w.client.Put(leaving("a"))
		return csitest.Action{}
	})
	w.client.Drop(gone)
	w.letGo("a")
	want := []csitest.Call{{Method: "ControllerUnpublishVolume", Request: &csipb.ControllerUnpublishVolumeRequest{
		VolumeId: "h-a", NodeId: "id-of-then",
	}}}
	if diff := cmp.Diff(want, d.Calls(), protocmp.Transform()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestDifferences: what a driver does not know any more, and what it has for nobody,
// is put right without anybody who asks for it.
func TestDifferences(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	var mu sync.Mutex
	has := []string{"h-unasked", "id-n1"}
	d.OnCall("ListVolumes", func(int, any) csitest.Action {
		mu.Lock()
		defer mu.Unlock()
		return listed(has...)(0, nil)
	})
	d.OnCall("ControllerPublishVolume", func(int, any) csitest.Action {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Contains(has, "h-forgotten") {
			has = append(has, "h-forgotten", "id-n1")
		}
		return csitest.Action{Answer: &csipb.ControllerPublishVolumeResponse{}}
	})
	d.OnCall("ControllerUnpublishVolume", func(int, any) csitest.Action {
		mu.Lock()
		defer mu.Unlock()
		if i := slices.Index(has, "h-unasked"); i >= 0 {
			has = slices.Delete(has, i, i+2)
		}
		return csitest.Action{Answer: &csipb.ControllerUnpublishVolumeResponse{}}
	})
	drivers := csi.NewSet()
	drivers.Put(d.Dial())
	forgotten := attachmentOf("forgotten", "n1")
	forgotten.Finalizers = []string{volume.AttacherFinalizer(loopDriver)}
	forgotten.Annotations = map[string]string{volume.AnnNodeID: "id-n1", volume.AnnDetach: `{"handle":"h-forgotten"}`}
	forgotten.Status.Attached = true
	newLoopWith(t, Options{Drivers: drivers, ReconcileSync: time.Millisecond}, volumeOf("forgotten"), volumeOf("unasked"),
		forgotten, nodeOf("n1"))
	kubetest.Eventually(t, func() string {
		mu.Lock()
		defer mu.Unlock()
		return cmp.Diff([]string{"h-forgotten", "id-n1"}, has)
	})
}

// TestVolumeObjectComesBack ever later while it cannot be written, until it is
// let go (S3-022).
func TestVolumeObjectComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		w := kubetest.NewAPI(t, leaving("old"))
		w.Fate = func(n int, _ string) (bool, error) {
			at = append(at, time.Now())
			if n < 6 {
				return false, errors.New("not now")
			}
			return true, nil
		}
		_, stop := w.Run(func(env controller.Env) *controller.Controller {
			return New(env, Options{Drivers: csi.NewSet()})
		})
		<-time.After(time.Minute)
		stop()
		w.Wrote(slices.Repeat([]string{"update persistentvolumes old"}, 6)...)
		if len(at) != 6 {
			t.Fatalf("%d tries, five of which failed", len(at))
		}
		pauses := make([]time.Duration, 0, len(at))
		for i := range at[1:] {
			pauses = append(pauses, at[i+1].Sub(at[i]))
		}
		want := []time.Duration{
			100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond,
			1600 * time.Millisecond,
		}
		if !slices.Equal(pauses, want) {
			t.Errorf("pauses between the tries: %v", pauses)
		}
	})
}
