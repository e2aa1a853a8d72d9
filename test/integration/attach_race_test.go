package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
)

// shared has a volume be one for many nodes.
func shared(v *corev1.PersistentVolume) {
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
}

// TestFinalizerOfTwoAttaches: a volume that is attached to two nodes at the same time has the finalizer
// once, whichever attach is first.
func TestFinalizerOfTwoAttaches(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c", shared)
	// Both writes are held until both are on their way.
	var both sync.WaitGroup
	both.Add(2)
	met := make(chan struct{}, 2)
	met <- struct{}{}
	met <- struct{}{}
	p.writes.onWrite(func(w write) {
		if w.role != "attacher" || w.method != http.MethodPut || !strings.HasSuffix(w.path, "/persistentvolumes/pv-c") {
			return
		}
		select {
		case <-met:
			both.Done()
			both.Wait()
		default:
		}
	})
	p.createPod("a", "n1", "c")
	p.createPod("b", "n2", "c")
	p.waitForAttached("n1", handle)
	p.waitForAttached("n2", handle)
	if got := p.getVolume("pv-c").Finalizers; count(got, volume.AttacherFinalizer(p.conn.Name)) != 1 {
		t.Errorf("finalizers are %v", got)
	}
	// One of the nodes is removed while the volume is being deleted: it stays for the other.
	p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, "pv-c", metav1.DeleteOptions{}))
	p.deletePod("a")
	p.on(handle, "id-n2")
	p.seenOn("n1")
	if got := p.getVolume("pv-c").Finalizers; count(got, volume.AttacherFinalizer(p.conn.Name)) != 1 {
		t.Errorf("finalizers are %v", got)
	}
	p.deletePod("b")
	p.deleteClaim("c")
	p.waitForNoVolume("pv-c")
}

// count returns how often a text occurs.
func count(all []string, what string) (n int) {
	for _, s := range all {
		if s == what {
			n++
		}
	}
	return n
}

// TestVolumeDeletedWhileAttaching: the attach succeeds, and the volume object exists until the detach.
func TestVolumeDeletedWhileAttaching(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	called, open := p.gate("ControllerPublishVolume", true, nil)
	p.createPod("web", "n1", "c")
	<-called
	p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, "pv-c", metav1.DeleteOptions{}))
	p.patchVolume("pv-c", fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, volume.AttacherFinalizer(p.conn.Name)))
	open()
	p.waitForAttached("n1", handle)
	if v := p.getVolume("pv-c"); v.DeletionTimestamp == nil {
		t.Error("the volume is not being deleted")
	}
	p.deletePod("web")
	p.waitForDetached()
	p.waitForNoVolume("pv-c")
}

// TestAttachmentOfAVolumeThatIsBeingDeleted: the attachment is refused, and deleted with its Pod.
func TestAttachmentOfAVolumeThatIsBeingDeleted(t *testing.T) {
	p := newPlane(t)
	p.createBoundVolume("c")
	p.patchVolume("pv-c", `{"metadata":{"finalizers":["example.com/kept","kubernetes.io/pv-protection"]}}`)
	p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, "pv-c", metav1.DeleteOptions{}))
	p.createPod("web", "n1", "c")
	p.waitForEvent("Pod", "web", volume.ReasonFailedAttach, "pv-c", "being deleted")
	va := p.attachments()[0]
	p.waitForEvent("VolumeAttachment", va.Name, volume.ReasonTerminating, "pv-c", "being deleted")
	p.deletePod("web")
	p.waitForDetached()
	// An attachment that was made before the controller had seen the deletion
	// promises a detach.
	detaches := 0
	if attach.HasFinalizer(&va) {
		detaches = 1
	}
	if publish, unpublish := p.calls("ControllerPublishVolume"), p.calls("ControllerUnpublishVolume"); publish > 0 ||
		unpublish != detaches {
		t.Errorf("%d attaches and %d detaches, finalizers %v", publish, unpublish, va.Finalizers)
	}
}

// TestAttachmentDeletedWhileAttaching: the result of the attach is undone before a new attachment is made,
// and the node gets only the new one.
func TestAttachmentDeletedWhileAttaching(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	called, open := p.gate("ControllerPublishVolume", true, nil)
	p.createPod("web", "n1", "c")
	<-called
	old := p.attachments()[0]
	p.deleteAttachment(old.Name)
	told := make(chan string, 100)
	p.writes.onWrite(func(w write) {
		if strings.HasSuffix(w.path, "/nodes/n1/status") {
			told <- strings.Join(p.driver.Methods(), " ")
		}
	})
	open()
	p.waitForAttached("n1", handle)
	var calls []string
	for _, c := range p.driver.Calls() {
		switch c.Request.(type) {
		case *csipb.ControllerPublishVolumeRequest:
			calls = append(calls, "publish")
		case *csipb.ControllerUnpublishVolumeRequest:
			calls = append(calls, "unpublish")
		}
	}
	if want := []string{"publish", "unpublish", "publish"}; !slices.Equal(calls, want) {
		t.Errorf("calls are %v", calls)
	}
	if first := <-told; strings.Count(first, "ControllerPublishVolume") != 2 {
		t.Errorf("the node was told of an attachment on its way out, after %s", first)
	}
	if now := p.attachments()[0]; now.UID == old.UID || !now.Status.Attached {
		t.Errorf("attachment is %+v", now)
	}
	p.deletePod("web")
	p.waitForDetached()
}

// TestAttachmentMadeAnewWhileAttaching: a user replaces an attachment by another one of the same name
// during the call. The driver's answer for the first is not written to the second, for which the driver is
// called again.
func TestAttachmentMadeAnewWhileAttaching(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	about, written := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p.writes.onWrite(func(w write) {
		if w.role == "attacher" && w.method == http.MethodPatch && strings.HasSuffix(w.path, "/status") {
			once.Do(func() { close(about); <-written })
		}
	})
	p.createPod("web", "n1", "c")
	<-about
	old := p.attachments()[0]
	_, err := p.client.StorageV1().VolumeAttachments().Patch(p.ctx, old.Name, types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	p.must(err)
	p.deleteAttachment(old.Name)
	p.attachment("made anew", func(va storagev1.VolumeAttachment) bool { return va.UID != old.UID })
	close(written)
	p.waitForAttached("n1", handle)
	if now := p.attachments()[0]; now.Name != old.Name || now.UID == old.UID || !now.Status.Attached {
		t.Errorf("attachment is %+v, was %+v", now, old)
	}
	if n := p.calls("ControllerPublishVolume"); n != 2 {
		t.Errorf("%d calls attached the volume for two attachments", n)
	}
	p.deletePod("web")
	p.waitForDetached()
}

// TestAttachEndsAfterThePodIsGone: no event says that the volume is attached.
func TestAttachEndsAfterThePodIsGone(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	called, open := p.gate("ControllerPublishVolume", true, nil)
	p.createPod("web", "n1", "c")
	<-called
	from := len(p.writes.since(0))
	p.deletePod("web")
	p.attachment("going", func(va storagev1.VolumeAttachment) bool { return va.DeletionTimestamp != nil })
	open()
	p.waitForDetached()
	for _, w := range p.writes.since(from) {
		if strings.HasSuffix(w.path, "/nodes/n1/status") && w.about(handle) {
			t.Errorf("the node was told: %s", w.body)
		}
	}
	if n := p.calls("ControllerUnpublishVolume"); n != 1 {
		t.Errorf("%d calls detached the volume", n)
	}
}

// TestManyVolumesOnTwoNodes: the same volumes are attached to two nodes and detached at the same time. In
// the end no attachment and no finalizer is left.
func TestManyVolumesOnTwoNodes(t *testing.T) {
	p := newPlane(t)
	const volumes = 10
	for i := range volumes {
		p.createBoundVolume(fmt.Sprint("c", i), shared)
	}
	for i := range volumes {
		p.createPod(fmt.Sprint("a", i), "n1", fmt.Sprint("c", i))
		p.createPod(fmt.Sprint("b", i), "n2", fmt.Sprint("c", i))
	}
	for i := range volumes {
		p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, fmt.Sprint("pv-c", i), metav1.DeleteOptions{}))
		p.deletePod(fmt.Sprint("a", i))
		p.deletePod(fmt.Sprint("b", i))
		p.deleteClaim(fmt.Sprint("c", i))
	}
	p.waitForDetached()
	for i := range volumes {
		p.waitForNoVolume(fmt.Sprint("pv-c", i))
	}
}
