package integration

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// TestAttachAndDetach: a volume is attached to a node and detached. The finalizers are written before the
// driver is called, and the detach waits until the node does not use the volume.
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
}
