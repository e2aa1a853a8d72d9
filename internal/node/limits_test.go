package node

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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
	object := noAttach(driverName)
	object.Spec.NodeAllocatableUpdatePeriodSeconds = ptr.To[int64](1)
	w := newWorld(t, object)
	w.tune = func(o *Options) { o.LookEvery = 10 * time.Millisecond }
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	w.run()
	w.takes(7)
	d.set(func() { d.most = 3 })
	w.takes(3)
}

// TestLimitIsAskedWhenFull: an attach that fails for want of room has the driver
// asked, and not before.
func TestLimitIsAskedWhenFull(t *testing.T) {
	w := newWorld(t)
	w.tune = func(o *Options) { o.LookEvery = 10 * time.Millisecond }
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	w.run()
	w.takes(7)
	w.wire(driverName, "a")
	w.pod("p", "a")
	w.says("p", corev1.ConditionFalse, "WaitForAttach")
	if got := d.history(); got != "info" {
		t.Errorf("calls: %s", got)
	}
	d.set(func() { d.most = 3 })
	w.must(w.client.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName("h-a", driverName, "n1")},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "n1"},
		Status:     storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "full", ErrorCode: ptr.To[int32](8)}},
	}, metav1.CreateOptions{}))
	w.takes(3)
}

// TestStaleDriver: one whose socket went away while no agent ran is taken from
// the Node's objects; the others stay.
func TestStaleDriver(t *testing.T) {
	w := newWorld(t)
	w.tune = func(o *Options) { o.SettleAfter = 50 * time.Millisecond }
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
