package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
)

// takes waits until the CSINode says how many volumes the node takes.
func (w *world) takes(want int32) {
	w.t.Helper()
	eventually(w.t, func() string {
		c, err := w.client.StorageV1().CSINodes().Get(w.t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, d := range c.Spec.Drivers {
			if d.Name == driverName && d.Allocatable != nil && *d.Allocatable.Count == want {
				return ""
			}
		}
		return fmt.Sprintf("the node takes %+v", c.Spec.Drivers)
	})
}

// TestLimitIsAskedAgain when the driver's object names a period.
func TestLimitIsAskedAgain(t *testing.T) {
	t.Parallel()
	object := noAttach(driverName)
	object.Spec.NodeAllocatableUpdatePeriodSeconds = ptr.To[int64](1)
	w := newWorld(t, object)
	w.tune = func(o *Options) { o.PollEvery = 10 * time.Millisecond }
	d := w.runWithDriver()
	w.takes(7)
	d.set(func() { d.maxVolumes = 3 })
	w.takes(3)
}

// TestLimitIsAskedWhenFull: an attach that fails for want of room has the driver
// asked, and not before.
func TestLimitIsAskedWhenFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tune = func(o *Options) { o.PollEvery = 10 * time.Millisecond }
	d := w.runWithDriver()
	w.takes(7)
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionFalse, "WaitForAttach")
	if got := d.history(); got != "info" {
		t.Errorf("calls: %s", got)
	}
	d.set(func() { d.maxVolumes = 3 })
	w.attachFails("a", codes.ResourceExhausted)
	w.takes(3)
	// The driver's object does not say that its limits change: the Pod waits for
	// room.
	w.must(nil, w.client.StorageV1().VolumeAttachments().Delete(t.Context(), attach.NameOf(driverName, "h-a", "n1"),
		metav1.DeleteOptions{}))
	w.attach(driverName, "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
}

// attachFails does what an attacher does whose driver answers with a code.
func (w *world) attachFails(name string, code codes.Code) {
	w.t.Helper()
	w.must(w.client.StorageV1().VolumeAttachments().Create(w.t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attach.NameOf(driverName, "h-"+name, "n1")},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "n1"},
		Status: storagev1.VolumeAttachmentStatus{
			AttachError: &storagev1.VolumeError{Message: "no", ErrorCode: ptr.To(int32(code))},
		},
	}, metav1.CreateOptions{}))
}

// TestPodIsGivenUpWhenFull: a Pod for whose volume there is no room is failed and
// gives back what it has; one that has what it wants, and one whose attach fails
// for another reason, are not.
func TestPodIsGivenUpWhenFull(t *testing.T) {
	t.Parallel()
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}}
	object.Spec.NodeAllocatableUpdatePeriodSeconds = ptr.To[int64](3600)
	w := newWorld(t, object)
	w.tune = func(o *Options) { o.PollEvery = 10 * time.Millisecond }
	d := w.runWithDriver()
	w.takes(7)
	for _, name := range []string{"has", "lacks", "broken"} {
		w.addVolume(driverName, name)
	}
	w.attach(driverName, "has")
	w.pod("happy", "has")
	w.awaitCondition("happy", corev1.ConditionTrue, "v-has=")
	w.attachFails("broken", codes.Internal)
	w.pod("waits", "broken")
	w.pod("p", "has", "lacks")
	w.awaitCondition("p", corev1.ConditionFalse, "WaitForAttach")
	d.set(func() { d.maxVolumes = 1 })
	w.attachFails("lacks", codes.ResourceExhausted)
	w.failed("p", "VolumeAttachmentLimitExceeded")
	w.eventSaid("VolumeAttachmentLimitExceeded", "node n1 cannot have more volumes of driver d.example")
	w.takes(1)
	eventually(t, func() string {
		if left := d.leftover(); strings.Contains(left, "uid-p/") || !strings.Contains(left, "uid-happy/") {
			return "mounted: " + left
		}
		return ""
	})
	// It is no longer attached, whatever the reason, and cannot be again: who
	// has it keeps it.
	w.must(nil, w.client.StorageV1().VolumeAttachments().Delete(t.Context(), attach.NameOf(driverName, "h-has", "n1"),
		metav1.DeleteOptions{}))
	w.must(w.client.CoreV1().Nodes().Patch(t.Context(), "n1", types.JSONPatchType,
		[]byte(`[{"op":"remove","path":"/status/volumesAttached"}]`), metav1.PatchOptions{}, "status"))
	w.attachFails("has", codes.ResourceExhausted)
	w.pod("second", "has")
	w.failed("second", "VolumeAttachmentLimitExceeded")
	for _, p := range []string{"happy", "waits"} {
		if pod, err := w.client.CoreV1().Pods("ns").Get(t.Context(), p, metav1.GetOptions{}); err != nil ||
			pod.Status.Phase == corev1.PodFailed {
			t.Errorf("pod %s is given up, %v", p, err)
		}
	}
}

// failed waits until a Pod has failed for a reason.
func (w *world) failed(name, reason string) {
	w.t.Helper()
	eventually(w.t, func() string {
		pod, err := w.client.CoreV1().Pods("ns").Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil || pod.Status.Phase != corev1.PodFailed || pod.Status.Reason != reason {
			return fmt.Sprintf("pod %s: %v, %s, %s", name, err, pod.Status.Phase, pod.Status.Reason)
		}
		return ""
	})
}

// TestStaleDriver: one whose socket went away while no agent ran is taken from
// the Node's objects; the others stay.
func TestStaleDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tune = func(o *Options) { o.RegistrationGrace = 50 * time.Millisecond }
	stays, goes := newFakeDriver(driverName, w.dir), newFakeDriver("e.example", w.dir)
	stays.start(t)
	w.run()
	w.registered(driverName)
	goes.start(t)
	w.registered(driverName, "e.example")
	w.stop()
	goes.stop()
	w.run()
	w.registered(driverName)
	eventually(t, func() string {
		if text := w.node().Annotations[volume.AnnLegacyNodeID]; text != `{"d.example":"id-d.example"}` {
			return "the annotation says " + text
		}
		return ""
	})
}
