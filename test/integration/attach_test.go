package integration

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// TestAttachAndDetach: a volume is attached to a node and detached. The finalizers are written before the
// driver is called, the detach waits until the node does not use the volume, and only the attacher writes the
// status of attachments (S1-072).
func TestAttachAndDetach(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	va, finalizer := p.attachments()[0], volume.AttacherFinalizer(p.conn.Name)
	if !slices.Equal(va.Finalizers, []string{finalizer}) || va.Annotations[volume.AnnNodeID] != "id-n1" ||
		!va.Status.Attached || va.Status.AttachmentMetadata["node"] != "id-n1" {
		t.Errorf("attachment is %+v", va)
	}
	pv, err := p.client.CoreV1().PersistentVolumes().Get(p.ctx, "pv-c", metav1.GetOptions{})
	p.must(err)
	if !slices.Contains(pv.Finalizers, finalizer) {
		t.Errorf("volume has the finalizers %v", pv.Finalizers)
	}
	p.waitForEvent("Pod", "web", volume.ReasonAttached, "pv-c", "n1")

	p.reportInUse("n1", handle)
	p.deletePod("web")
	p.waitForAttached("n1")
	// Another volume comes to the node in the meantime: the node was reconciled again.
	other := p.createBoundVolume("d")
	p.createPod("next", "n1", "d")
	p.waitForAttached("n1", other)
	if p.calls("ControllerUnpublishVolume") > 0 {
		t.Error("a volume was detached that its node uses")
	}
	p.reportInUse("n1")
	p.eventually(func() string {
		if all := p.attachments(); len(all) != 1 || *all[0].Spec.Source.PersistentVolumeName != "pv-d" {
			return fmt.Sprint("attachments are ", all)
		}
		return ""
	})
	p.deletePod("next")
	p.waitForDetached()
	if roles := p.statusWriters(); len(roles) != 1 || roles["attacher"] == 0 {
		t.Errorf("the status of an attachment was written by %v", roles)
	}
}

// statusWriters counts by role who has written the status of an attachment.
func (p *plane) statusWriters() map[string]int {
	roles := map[string]int{}
	for _, w := range p.writes.since(0) {
		if strings.Contains(w.path, "/volumeattachments/") && strings.HasSuffix(w.path, "/status") {
			roles[w.role]++
		}
	}
	return roles
}

// attachment waits until there is one attachment with a property, and returns it.
func (p *plane) attachment(
	argues string, has func(storagev1.VolumeAttachment) bool,
) (found storagev1.VolumeAttachment) {
	p.t.Helper()
	p.eventually(func() string {
		all := p.attachments()
		if len(all) != 1 || !has(all[0]) {
			return fmt.Sprintf("%s: %+v", argues, all)
		}
		found = all[0]
		return ""
	})
	return found
}

// TestWhatAttachmentsSay: the status of an attachment while attaching fails, after it succeeded, and while
// detaching fails.
func TestWhatAttachmentsSay(t *testing.T) {
	p := newPlane(t)
	not := func(int, any) csitest.Action { return csitest.Action{Err: status.Error(codes.Internal, "not now")} }
	p.driver.OnCall("ControllerPublishVolume", not)
	p.driver.OnCall("ControllerUnpublishVolume", not)
	p.createClass("fast")
	p.createClaim("c", "fast")
	p.waitForBound("c")
	v := p.getVolume(p.getClaim("c").Spec.VolumeName)
	p.createPod("web", "n1", "c")
	va := p.attachment("attaching fails (S1-058, S1-059)", func(va storagev1.VolumeAttachment) bool {
		return va.Status.AttachError != nil && !va.Status.Attached
	})
	handle := v.Spec.CSI.VolumeHandle
	if want := fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+p.conn.Name+"n1"))); va.Name != want {
		t.Errorf("the name is %s, not %s (S1-083)", va.Name, want)
	}
	if s := va.Spec; s.Attacher != p.conn.Name || *s.Source.PersistentVolumeName != v.Name || s.NodeName != "n1" {
		t.Errorf("it says %+v (S1-069 to S1-071)", s)
	}
	p.driver.OnCall("ControllerPublishVolume", nil)
	p.attachment("attached (S1-055, S1-057)", func(va storagev1.VolumeAttachment) bool {
		return va.Status.AttachError == nil && va.Status.Attached
	})
	p.waitForAttached("n1", handle)
	p.deletePod("web")
	p.attachment("detaching fails (S1-065, S1-066)", func(va storagev1.VolumeAttachment) bool {
		return va.Status.DetachError != nil && va.Status.Attached && va.DeletionTimestamp != nil
	})
	p.driver.OnCall("ControllerUnpublishVolume", nil)
	p.waitForDetached()
	if v := p.getVolume(v.Name); v.Status.Phase != corev1.VolumeBound {
		t.Errorf("volume is %s", v.Status.Phase)
	}
}
