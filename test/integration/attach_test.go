package integration

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/attach"
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

// TestMultiAttach: an event names the node for which the second Pod waits, and the Pod's volume is attached
// when the first Pod is gone.
func TestMultiAttach(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	p.createPod("first", "n1", "c")
	p.waitForAttached("n1", handle)
	p.createPod("second", "n2", "c")
	p.waitForEvent("Pod", "second", volume.ReasonFailedAttach, "Multi-Attach", "n1", "first")
	p.deletePod("first")
	p.waitForAttached("n2", handle)
	p.waitForAttached("n1")
	p.deletePod("second")
	p.waitForDetached()
}

// TestOneWriterAtATime: two nodes need the same volumes at the same time. No volume may ever have two
// attachments.
func TestOneWriterAtATime(t *testing.T) {
	p := newPlane(t)
	const volumes = 20
	twice := p.secondNodes()
	for i := range volumes {
		p.createBoundVolume(fmt.Sprint("c", i))
	}
	for i := range volumes {
		p.createPod(fmt.Sprint("a", i), "n1", fmt.Sprint("c", i))
		p.createPod(fmt.Sprint("b", i), "n2", fmt.Sprint("c", i))
	}
	seen := map[string]string{}
	p.eventually(func() string {
		for _, a := range p.attachments() {
			name := *a.Spec.Source.PersistentVolumeName
			if node, ok := seen[name]; ok && node != a.Spec.NodeName {
				t.Fatalf("volume %s has attachments to %s and %s", name, node, a.Spec.NodeName)
			}
			seen[name] = a.Spec.NodeName
		}
		return p.fewer(volumes, "")
	})
	for i := range volumes {
		p.deletePod(fmt.Sprint("a", i))
	}
	p.eventually(func() string { return p.fewer(volumes, "n2") })
	select {
	case id := <-twice:
		t.Errorf("volume %s was attached to two nodes", id)
	default:
	}
	for i := range volumes {
		p.deletePod(fmt.Sprint("b", i))
	}
	p.waitForDetached()
}

// secondNodes reports each volume that the driver is called to attach while it is attached to another node.
func (p *plane) secondNodes() <-chan string {
	twice := make(chan string, 100)
	p.driver.OnCall("ControllerPublishVolume", func(_ int, req any) csitest.Action {
		r := req.(*csipb.ControllerPublishVolumeRequest)
		for _, v := range p.driver.Volumes() {
			if v.ID == r.GetVolumeId() && len(v.Nodes) > 0 && v.Nodes[0] != r.GetNodeId() {
				twice <- v.ID
			}
		}
		return csitest.Action{}
	})
	return twice
}

// fewer reports how many volumes are attached to the node, or to any node when it is "", while they are
// fewer than this number.
func (p *plane) fewer(volumes int, node string) string {
	attached := 0
	for _, a := range p.attachments() {
		if a.Status.Attached && (node == "" || a.Spec.NodeName == node) {
			attached++
		}
	}
	if attached < volumes {
		return fmt.Sprintf("%d volumes are attached to %s", attached, node)
	}
	return ""
}

// TestDetachNeedsNobody: the volume object, the Secret, the Node and the driver's registration are deleted
// before the Pod.
func TestDetachNeedsNobody(t *testing.T) {
	p := newPlane(t)
	_, err := p.client.CoreV1().Secrets("default").Create(p.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"password": "s3cret"},
	}, metav1.CreateOptions{})
	p.must(err)
	handle := p.createBoundVolume("c", func(v *corev1.PersistentVolume) {
		v.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "key"}
	})
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	p.reportInUse("n1", handle)
	p.must(p.client.CoreV1().Secrets("default").Delete(p.ctx, "key", metav1.DeleteOptions{}))
	p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, "pv-c", metav1.DeleteOptions{}))
	_, err = p.client.CoreV1().PersistentVolumes().Patch(p.ctx, "pv-c", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	p.must(err)
	p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, "n1", metav1.DeleteOptions{}))
	p.must(p.client.CoreV1().Nodes().Delete(p.ctx, "n1", metav1.DeleteOptions{}))
	p.waitForDetached()
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.ControllerUnpublishVolumeRequest); ok &&
			(r.GetVolumeId() != handle || r.GetNodeId() != "id-n1") {
			t.Errorf("the driver was asked to detach %v", r)
		}
	}
}

// TestDetachOfWhatWasNotAttached: the Secret never existed. The driver is called neither to attach nor
// to detach, for which it would need the Secret.
func TestDetachOfWhatWasNotAttached(t *testing.T) {
	p := newPlane(t)
	p.createBoundVolume("c", func(v *corev1.PersistentVolume) {
		v.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "key"}
	})
	p.createPod("web", "n1", "c")
	va := p.attachment("an attach without its Secret fails",
		func(a storagev1.VolumeAttachment) bool { return a.Status.AttachError != nil })
	p.waitForEvent("VolumeAttachment", va.Name, volume.ReasonFailedAttach, "default/key")
	p.deletePod("web")
	p.waitForDetached()
	if n := p.calls("ControllerPublishVolume") + p.calls("ControllerUnpublishVolume"); n > 0 {
		t.Errorf("%d calls", n)
	}
}

// TestLostAttachment: an attachment disappears although it has its finalizer, because the API server let
// the deletion win over the write of the finalizer (kubernetes/kubernetes#77988). Its volume is detached,
// and the volume object waits for that.
func TestLostAttachment(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	called, open := p.gate("ControllerPublishVolume", true, nil)
	p.driver.OnCall("ControllerUnpublishVolume", func(int, any) csitest.Action {
		return csitest.Action{Err: status.Error(codes.Unavailable, "not now")}
	})
	// The node's report keeps others from detaching; it is written long before, so that they
	// have seen it.
	p.reportInUse("n1", handle)
	p.createPod("web", "n1", "c")
	<-called
	va := p.attachments()[0]
	if len(va.Finalizers) != 1 {
		t.Fatal("finalizers are", va.Finalizers)
	}
	// If the attach/detach controller did not know yet that the Pod has gone, it would recreate the attachment.
	p.deletePod("web")
	p.seenOn("n1")
	p.lose("volumeattachments/" + va.Name)
	p.must(p.client.CoreV1().PersistentVolumeClaims("default").Delete(p.ctx, "c", metav1.DeleteOptions{}))
	p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, "pv-c", metav1.DeleteOptions{}))
	open()
	p.seenOn("n1", "id-seen-1")
	if n := p.calls("ControllerUnpublishVolume"); n > 0 {
		t.Errorf("%d calls were to detach a volume that its node uses", n)
	}
	p.reportInUse("n1")
	p.eventually(func() string {
		if got := p.getVolume("pv-c").Finalizers; !slices.Equal(got, []string{volume.AttacherFinalizer(p.conn.Name)}) ||
			p.calls("ControllerUnpublishVolume") == 0 {
			return fmt.Sprintf("volume has the finalizers %v, and %d calls were to detach it", got,
				p.calls("ControllerUnpublishVolume"))
		}
		return ""
	})
	p.seenOn("n1", "id-seen-1", "id-seen-2")
	if got := p.getVolume("pv-c").Finalizers; len(got) != 1 {
		t.Errorf("volume has the finalizers %v and is not detached", got)
	}
	p.driver.OnCall("ControllerUnpublishVolume", nil)
	p.waitForNoVolume("pv-c")
	p.on(handle)
}

// lose deletes an object in etcd, which no controller can prevent.
func (p *plane) lose(key string) {
	p.t.Helper()
	store, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"unix://" + filepath.Join(p.dir, "etcd", "client.sock")},
	})
	p.must(err)
	defer func() { _ = store.Close() }()
	gone, err := store.Delete(p.ctx, "/registry/"+key)
	p.must(err)
	if gone.Deleted != 1 {
		p.t.Fatal("there is no", key)
	}
}

// TestAttachErrors: errors are reported by events, calls are repeated, and a call to a driver that hangs
// times out.
func TestAttachErrors(t *testing.T) {
	p := newImpatientPlane(t)
	p.driver.OnCall("ControllerPublishVolume", func(n int, _ any) csitest.Action {
		switch n {
		case 1:
			return csitest.Action{Err: status.Error(codes.ResourceExhausted, "no port is free")}
		case 2:
			return csitest.Action{Hang: true}
		case 3:
			return csitest.Action{After: true, Err: status.Error(codes.Unavailable, "gone")}
		}
		return csitest.Action{}
	})
	refused := make(chan storagev1.VolumeError, 100)
	watch, err := p.client.StorageV1().VolumeAttachments().Watch(p.ctx, metav1.ListOptions{})
	p.must(err)
	defer watch.Stop()
	go func() {
		for e := range watch.ResultChan() {
			if va, ok := e.Object.(*storagev1.VolumeAttachment); ok && va.Status.AttachError != nil {
				refused <- *va.Status.AttachError
			}
		}
	}()
	handle := p.createBoundVolume("c")
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	if first := <-refused; first.Message != "ResourceExhausted: no port is free" ||
		ptr.Deref(first.ErrorCode, 0) != int32(codes.ResourceExhausted) {
		t.Errorf("the first error is %+v", first)
	}
	va := p.attachments()[0]
	if va.Status.AttachError != nil || !va.Status.Attached {
		t.Errorf("status is %+v", va.Status)
	}
	p.waitForEvent("VolumeAttachment", va.Name, volume.ReasonFailedAttach, "no port is free")
	p.waitForEvent("Pod", "web", volume.ReasonFailedAttach, "pv-c", "n1")
	if n := p.calls("ControllerPublishVolume"); n != 4 {
		t.Errorf("the driver was called %d times", n)
	}
	p.deletePod("web")
	p.waitForDetached()
}

// TestAttachThatMayHaveHappened: the driver attached, but returned an error, and the Pod is deleted. The
// attach is undone.
func TestAttachThatMayHaveHappened(t *testing.T) {
	for name, err := range map[string]error{
		"unknown": status.Error(codes.Unavailable, "gone"), "final": status.Error(codes.Internal, "no"),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t)
			p.driver.OnCall("ControllerPublishVolume",
				func(int, any) csitest.Action { return csitest.Action{After: true, Err: err} })
			p.driver.OnCall("ControllerUnpublishVolume", func(n int, _ any) csitest.Action {
				if n == 1 {
					return csitest.Action{Err: status.Error(codes.Internal, "not now")}
				}
				return csitest.Action{}
			})
			p.createBoundVolume("c")
			p.createPod("web", "n1", "c")
			p.waitForEvent("Pod", "web", volume.ReasonFailedAttach, "pv-c")
			va := p.attachments()[0].Name
			p.deletePod("web")
			p.waitForDetached()
			p.waitForEvent("VolumeAttachment", va, volume.ReasonFailedDetach, "not now")
		})
	}
}

// TestRestartDuringAttach: new controllers find an attach whose end the old ones did not see, and one whose
// Pod was deleted in the meantime.
func TestRestartDuringAttach(t *testing.T) {
	p := newPlane(t)
	wanted, unwanted := p.createBoundVolume("c"), p.createBoundVolume("d")
	p.driver.OnCall("ControllerPublishVolume",
		func(int, any) csitest.Action { return csitest.Action{After: true, Hang: true} })
	p.createPod("web", "n1", "c")
	p.createPod("old", "n1", "d")
	p.eventually(func() string {
		if p.calls("ControllerPublishVolume") < 2 {
			return "the driver is not called"
		}
		return ""
	})
	p.stop()
	p.deletePod("old")
	p.driver.OnCall("ControllerPublishVolume", nil)
	p.start()
	p.waitForAttached("n1", wanted)
	p.eventually(func() string {
		for _, v := range p.driver.Volumes() {
			if v.ID == unwanted && len(v.Nodes) > 0 {
				return "the unwanted volume is attached"
			}
		}
		return ""
	})
	p.deletePod("web")
	p.waitForDetached()
}

// TestOutOfService: an administrator declares a node out of service, and its volumes are detached although
// it reports them as in use. Events of the Node and of the attachment say that it was by force.
func TestOutOfService(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	p.reportInUse("n1", handle)
	p.deletePod("web")
	p.waitForAttached("n1")
	p.outOfService("n1")
	p.waitForEvent("Node", "n1", volume.ReasonDetaching, "pv-c", "by force")
	p.waitForEvent("VolumeAttachment", attach.NameOf(p.conn.Name, handle, "n1"), volume.ReasonDetaching, "pv-c",
		"by force")
	p.waitForDetached()
}

// TestAttachNotRequired: a driver that needs no attaching gets no attachments, and a driver that cannot
// attach is not called.
func TestAttachNotRequired(t *testing.T) {
	p := newPlane(t, func(c *csitest.Config) { c.Controller.PublishUnpublish = false })
	handle := p.createBoundVolume("c")
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	if va := p.attachments()[0]; len(va.Finalizers) > 0 || p.calls("ControllerPublishVolume") > 0 {
		t.Errorf("a driver with nothing to attach: %v, calls %v", va.Finalizers, p.driver.Methods())
	}
	p.deletePod("web")
	p.waitForDetached()
	// What is attached stays so while a Pod uses it: the controllers must not see
	// the Pod before they see what the driver says now.
	p.stop()
	p.needsAttach(false)
	p.start()
	p.createPod("next", "n1", "c")
	p.seenNeedless("d")
	if all := p.attachments(); len(all) > 0 {
		t.Errorf("attachments are %v", all)
	}
}

// TestVolumeObjectGoesAtLast: a volume object that is being deleted loses its finalizer when no attachment
// names it any more (S1-054).
func TestVolumeObjectGoesAtLast(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, "pv-c", metav1.DeleteOptions{}))
	p.deletePod("web")
	p.waitForDetached()
	p.must(p.client.CoreV1().PersistentVolumeClaims("default").Delete(p.ctx, "c", metav1.DeleteOptions{}))
	p.eventually(func() string {
		v, err := p.client.CoreV1().PersistentVolumes().Get(p.ctx, "pv-c", metav1.GetOptions{})
		if gone(err) {
			return ""
		}
		p.must(err)
		return fmt.Sprintf("volume is there: %v %s", v.Finalizers, v.Status.Phase)
	})
}
