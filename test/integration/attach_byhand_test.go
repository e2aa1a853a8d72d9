package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// TestFinalizerIsTakenByHand: a user removes the attacher's finalizer. An attachment that still exists gets
// it again, and one that is deleted before that is detached nevertheless.
func TestFinalizerIsTakenByHand(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	bare := func() string {
		name := p.attachments()[0].Name
		_, err := p.client.StorageV1().VolumeAttachments().Patch(p.ctx, name, types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		p.must(err)
		return name
	}
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	bare()
	p.eventually(func() string {
		if va := p.attachments()[0]; len(va.Finalizers) != 1 || !va.Status.Attached {
			return fmt.Sprintf("the attachment has the finalizers %v, attached is %v", va.Finalizers, va.Status.Attached)
		}
		return ""
	})
	if n := p.calls("ControllerUnpublishVolume"); n != 0 {
		t.Errorf("%d calls were to detach it", n)
	}
	p.deletePod("web")
	p.waitForDetached()
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	p.deleteAttachment(bare())
	p.deletePod("web")
	p.waitForDetached()
}

// TestVolumeObjectMadeAnew: a user deletes a volume object with its finalizers while the volume is
// attached, and creates one with the same name for another volume. The first volume is detached, and the
// second one is attached by an attachment of its own.
func TestVolumeObjectMadeAnew(t *testing.T) {
	p := newPlane(t)
	first := p.createBoundVolume("c")
	other := p.createBoundVolume("d")
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", first)
	p.reportInUse("n1", first)
	anew := p.getVolume("pv-c")
	p.lose("persistentvolumes/pv-d")
	p.lose("persistentvolumes/pv-c")
	anew.UID, anew.ResourceVersion, anew.Spec.CSI.VolumeHandle = "", "", other
	_, err := p.client.CoreV1().PersistentVolumes().Create(p.ctx, anew, metav1.CreateOptions{})
	p.must(err)
	p.waitForAttached("n1", other)
	p.on(first, "id-n1") // which the node says that it uses
	p.reportInUse("n1", other)
	p.on(first)
	p.deletePod("web")
	p.reportInUse("n1")
	p.waitForDetached()
}

// TestForcedAwayWhileMounted: a user deletes an attachment with its finalizers while its node has the
// volume mounted. No other node gets the volume before that node has unmounted it or is dead.
func TestForcedAwayWhileMounted(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	for round, end := range []func(){
		func() { p.reportInUse("n1") },
		func() {
			p.patchNodeStatus("n1", map[string]any{
				"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}},
			})
		},
	} {
		next := fmt.Sprint("next-", round)
		p.createPod("web", "n1", "c")
		p.waitForAttached("n1", handle)
		p.reportInUse("n1", handle)
		p.deletePod("web")
		p.createPod(next, "n2", "c")
		// From here on nothing is attached again for the first Pod.
		p.waitForEvent("Pod", next, volume.ReasonFailedAttach, "Multi-Attach error", "still attached to node n1")
		p.lose("volumeattachments/" + p.attachments()[0].Name)
		p.waitForEvent("Pod", next, volume.ReasonFailedAttach, "Multi-Attach error", "node n1 says that it still uses it")
		p.attachmentCount(0)
		end()
		p.waitForAttached("n2", handle)
		p.deletePod(next)
		p.waitForDetached()
		p.reportInUse("n1")
	}
}
