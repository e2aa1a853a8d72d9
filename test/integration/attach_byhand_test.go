package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// TestFinalizerIsTakenByHand: somebody takes the attacher's finalizer away. An
// attachment that lives on gets it again; one that is deleted before is detached
// nevertheless.
func TestFinalizerIsTakenByHand(t *testing.T) {
	p := newPlane(t)
	handle := p.wire("c")
	bare := func() string {
		name := p.attachments()[0].Name
		_, err := p.client.StorageV1().VolumeAttachments().Patch(p.ctx, name, types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		p.must(err)
		return name
	}
	p.pod("web", "n1", "c")
	p.mayMount("n1", handle)
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
	p.removePod("web")
	p.detached()
	p.pod("web", "n1", "c")
	p.mayMount("n1", handle)
	p.deleteAttachment(bare())
	p.removePod("web")
	p.detached()
}

// TestVolumeObjectMadeAnew: a volume object is taken away with its finalizers and
// made again under its name for another volume, while the first is attached. The
// first is detached, and the second is attached by an attachment of its own.
func TestVolumeObjectMadeAnew(t *testing.T) {
	p := newPlane(t)
	first := p.wire("c")
	other := p.wire("d")
	p.pod("web", "n1", "c")
	p.mayMount("n1", first)
	p.uses("n1", first)
	anew := p.getVolume("pv-c")
	p.lose("persistentvolumes/pv-d")
	p.lose("persistentvolumes/pv-c")
	anew.UID, anew.ResourceVersion, anew.Spec.CSI.VolumeHandle = "", "", other
	_, err := p.client.CoreV1().PersistentVolumes().Create(p.ctx, anew, metav1.CreateOptions{})
	p.must(err)
	p.mayMount("n1", other)
	p.on(first, "id-n1") // which the node says that it uses
	p.uses("n1", other)
	p.on(first)
	p.removePod("web")
	p.uses("n1")
	p.detached()
}

// TestForcedAwayWhileMounted: somebody takes an attachment away with its
// finalizers while its node has the volume mounted. No other node gets it before
// that one has unmounted it, or is dead.
func TestForcedAwayWhileMounted(t *testing.T) {
	p := newPlane(t)
	handle := p.wire("c")
	for _, end := range []func(){
		func() { p.uses("n1") },
		func() {
			p.nodeStatus("n1", map[string]any{
				"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}},
			})
		},
	} {
		p.pod("web", "n1", "c")
		p.mayMount("n1", handle)
		p.uses("n1", handle)
		p.removePod("web")
		p.lose("volumeattachments/" + p.attachments()[0].Name)
		p.pod("next", "n2", "c")
		p.tells("Pod", "next", volume.ReasonFailedAttach, "Multi-Attach error", "node n1 says that it still uses it")
		p.attachmentCount(0)
		end()
		p.mayMount("n2", handle)
		p.removePod("next")
		p.detached()
		p.uses("n1")
	}
}
