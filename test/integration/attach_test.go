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
	"volplane.dev/volplane/internal/volume"
)

// TestAttachAndDetach follows one volume to a node and back: what is written
// before the driver is called, and that a detach waits for the node.
func TestAttachAndDetach(t *testing.T) {
	p := newPlane(t)
	handle := p.wire("c")
	p.pod("web", "n1", "c")
	p.mayMount("n1", handle)
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
	p.tells("Pod", "web", volume.ReasonAttached, "pv-c", "n1")

	p.uses("n1", handle)
	p.removePod("web")
	p.mayMount("n1")
	// Another volume comes to the node meanwhile: the node was looked at again.
	other := p.wire("d")
	p.pod("next", "n1", "d")
	p.mayMount("n1", other)
	if p.calls("ControllerUnpublishVolume") > 0 {
		t.Error("a volume was detached that its node uses")
	}
	p.uses("n1")
	p.eventually(func() string {
		if all := p.attachments(); len(all) != 1 || *all[0].Spec.Source.PersistentVolumeName != "pv-d" {
			return fmt.Sprint("attachments are ", all)
		}
		return ""
	})
	p.removePod("next")
	p.detached()
}

// TestMultiAttach: the second Pod waits, hears for whom, and goes on when the
// first is gone.
func TestMultiAttach(t *testing.T) {
	p := newPlane(t)
	handle := p.wire("c")
	p.pod("first", "n1", "c")
	p.mayMount("n1", handle)
	p.pod("second", "n2", "c")
	p.tells("Pod", "second", volume.ReasonFailedAttach, "Multi-Attach", "n1", "first")
	p.removePod("first")
	p.mayMount("n2", handle)
	p.mayMount("n1")
	p.removePod("second")
	p.detached()
}

// TestOneWriterAtATime has two nodes want the same volumes at the same moment:
// none of them may ever have two attachments.
func TestOneWriterAtATime(t *testing.T) {
	p := newPlane(t)
	const volumes = 20
	twice := p.secondNodes()
	for i := range volumes {
		p.wire(fmt.Sprint("c", i))
	}
	for i := range volumes {
		p.pod(fmt.Sprint("a", i), "n1", fmt.Sprint("c", i))
		p.pod(fmt.Sprint("b", i), "n2", fmt.Sprint("c", i))
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
		p.removePod(fmt.Sprint("a", i))
	}
	p.eventually(func() string { return p.fewer(volumes, "n2") })
	select {
	case id := <-twice:
		t.Errorf("volume %s was attached to two nodes", id)
	default:
	}
	for i := range volumes {
		p.removePod(fmt.Sprint("b", i))
	}
	p.detached()
}

// secondNodes tells of each volume that the driver is asked to attach while it
// is attached to another node.
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

// fewer says, while fewer than that many volumes are attached to the node, or
// to any node when it is "", how many are.
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

// TestDetachNeedsNobody: the volume object, the Secret, the Node and the
// driver's registration there are gone when the Pod goes.
func TestDetachNeedsNobody(t *testing.T) {
	p := newPlane(t)
	_, err := p.client.CoreV1().Secrets("default").Create(p.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"password": "s3cret"},
	}, metav1.CreateOptions{})
	p.must(err)
	handle := p.wire("c", func(v *corev1.PersistentVolume) {
		v.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "key"}
	})
	p.pod("web", "n1", "c")
	p.mayMount("n1", handle)
	p.uses("n1", handle)
	p.must(p.client.CoreV1().Secrets("default").Delete(p.ctx, "key", metav1.DeleteOptions{}))
	p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, "pv-c", metav1.DeleteOptions{}))
	_, err = p.client.CoreV1().PersistentVolumes().Patch(p.ctx, "pv-c", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	p.must(err)
	p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, "n1", metav1.DeleteOptions{}))
	p.must(p.client.CoreV1().Nodes().Delete(p.ctx, "n1", metav1.DeleteOptions{}))
	p.detached()
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.ControllerUnpublishVolumeRequest); ok &&
			(r.GetVolumeId() != handle || r.GetNodeId() != "id-n1") {
			t.Errorf("the driver was asked to detach %v", r)
		}
	}
}

// TestDetachOfWhatWasNotAttached: the Secret was missing all the time. The driver
// is asked neither to attach nor to detach, which it could not do without.
func TestDetachOfWhatWasNotAttached(t *testing.T) {
	p := newPlane(t)
	p.wire("c", func(v *corev1.PersistentVolume) {
		v.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "key"}
	})
	p.pod("web", "n1", "c")
	va := p.attachment("an attach without its Secret fails",
		func(a storagev1.VolumeAttachment) bool { return a.Status.AttachError != nil })
	p.tells("VolumeAttachment", va.Name, volume.ReasonFailedAttach, "default/key")
	p.removePod("web")
	p.detached()
	if n := p.calls("ControllerPublishVolume") + p.calls("ControllerUnpublishVolume"); n > 0 {
		t.Errorf("%d calls", n)
	}
}

// TestLostAttachment: an attachment that is gone with its finalizer on, as
// after a deletion that the API server lets win over the finalizer's writing
// (kubernetes/kubernetes#77988), is detached from where it was, and its volume
// object waits for that.
func TestLostAttachment(t *testing.T) {
	p := newPlane(t)
	handle := p.wire("c")
	called, open := p.gate("ControllerPublishVolume", true, nil)
	p.driver.OnCall("ControllerUnpublishVolume", func(int, any) csitest.Action {
		return csitest.Action{Err: status.Error(codes.Unavailable, "not now")}
	})
	// The node's word keeps others from detaching; it is given long before, so
	// that they have heard it.
	p.uses("n1", handle)
	p.pod("web", "n1", "c")
	<-called
	p.removePod("web")
	va := p.attachments()[0]
	if len(va.Finalizers) != 1 {
		t.Fatal("finalizers are", va.Finalizers)
	}
	p.lose("volumeattachments/" + va.Name)
	p.must(p.client.CoreV1().PersistentVolumeClaims("default").Delete(p.ctx, "c", metav1.DeleteOptions{}))
	p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, "pv-c", metav1.DeleteOptions{}))
	open()
	p.eventually(func() string {
		if got := p.getVolume("pv-c").Finalizers; !slices.Equal(got, []string{volume.AttacherFinalizer(p.conn.Name)}) ||
			p.calls("ControllerUnpublishVolume") == 0 {
			return fmt.Sprintf("volume has the finalizers %v, and %d calls were to detach it", got,
				p.calls("ControllerUnpublishVolume"))
		}
		return ""
	})
	p.seenOn("n1")
	if got := p.getVolume("pv-c").Finalizers; len(got) != 1 {
		t.Errorf("volume has the finalizers %v and is not detached", got)
	}
	p.driver.OnCall("ControllerUnpublishVolume", nil)
	p.noVolume("pv-c")
	p.on(handle)
}

// lose takes an object away behind the API server's back.
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

// TestAttachErrors are told and repeated, and a hanging driver is not waited
// for for ever.
func TestAttachErrors(t *testing.T) {
	p := newHasty(t)
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
	handle := p.wire("c")
	p.pod("web", "n1", "c")
	p.mayMount("n1", handle)
	if first := <-refused; first.Message != "ResourceExhausted: no port is free" ||
		ptr.Deref(first.ErrorCode, 0) != int32(codes.ResourceExhausted) {
		t.Errorf("the first error is %+v", first)
	}
	va := p.attachments()[0]
	if va.Status.AttachError != nil || !va.Status.Attached {
		t.Errorf("status is %+v", va.Status)
	}
	p.tells("VolumeAttachment", va.Name, volume.ReasonFailedAttach, "no port is free")
	p.tells("Pod", "web", volume.ReasonFailedAttach, "pv-c", "n1")
	if n := p.calls("ControllerPublishVolume"); n != 4 {
		t.Errorf("the driver was called %d times", n)
	}
	p.removePod("web")
	p.detached()
}

// TestAttachThatMayHaveHappened is undone: the driver attached but said that it
// had not, and nobody wants the volume any more.
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
			p.wire("c")
			p.pod("web", "n1", "c")
			p.tells("Pod", "web", volume.ReasonFailedAttach, "pv-c")
			va := p.attachments()[0].Name
			p.removePod("web")
			p.detached()
			p.tells("VolumeAttachment", va, volume.ReasonFailedDetach, "not now")
		})
	}
}

// TestRestartDuringAttach: new controllers find an attach that the old ones did
// not see the end of, and one whose Pod went away meanwhile.
func TestRestartDuringAttach(t *testing.T) {
	p := newPlane(t)
	wanted, unwanted := p.wire("c"), p.wire("d")
	p.driver.OnCall("ControllerPublishVolume",
		func(int, any) csitest.Action { return csitest.Action{After: true, Hang: true} })
	p.pod("web", "n1", "c")
	p.pod("old", "n1", "d")
	p.eventually(func() string {
		if p.calls("ControllerPublishVolume") < 2 {
			return "the driver is not called"
		}
		return ""
	})
	p.stop()
	p.removePod("old")
	p.driver.OnCall("ControllerPublishVolume", nil)
	p.start()
	p.mayMount("n1", wanted)
	p.eventually(func() string {
		for _, v := range p.driver.Volumes() {
			if v.ID == unwanted && len(v.Nodes) > 0 {
				return "the unwanted volume is attached"
			}
		}
		return ""
	})
	p.removePod("web")
	p.detached()
}

// TestOutOfService: people say that a node is dead, and its volumes go although
// it said that it uses them.
func TestOutOfService(t *testing.T) {
	p := newPlane(t)
	handle := p.wire("c")
	p.pod("web", "n1", "c")
	p.mayMount("n1", handle)
	p.uses("n1", handle)
	p.removePod("web")
	p.mayMount("n1")
	_, err := p.client.CoreV1().Nodes().Patch(p.ctx, "n1", types.MergePatchType,
		[]byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]}}`),
		metav1.PatchOptions{})
	p.must(err)
	p.detached()
}

// TestAttachNotRequired: a driver that says so gets no attachments, and one
// that cannot attach is not called.
func TestAttachNotRequired(t *testing.T) {
	p := newPlane(t, func(c *csitest.Config) { c.Controller.PublishUnpublish = false })
	handle := p.wire("c")
	p.pod("web", "n1", "c")
	p.mayMount("n1", handle)
	if va := p.attachments()[0]; len(va.Finalizers) > 0 || p.calls("ControllerPublishVolume") > 0 {
		t.Errorf("a driver with nothing to attach: %v, calls %v", va.Finalizers, p.driver.Methods())
	}
	p.removePod("web")
	p.detached()
	// What is attached stays so while a Pod uses it: the controllers must not see
	// the Pod before they see what the driver says now.
	p.stop()
	p.needsAttach(false)
	p.start()
	p.pod("next", "n1", "c")
	p.seenNeedless("d")
	if all := p.attachments(); len(all) > 0 {
		t.Errorf("attachments are %v", all)
	}
}

// TestVolumeObjectGoesAtLast: a volume object that is being deleted is let go
// when no attachment names it any more (S1-054).
func TestVolumeObjectGoesAtLast(t *testing.T) {
	p := newPlane(t)
	handle := p.wire("c")
	p.pod("web", "n1", "c")
	p.mayMount("n1", handle)
	p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, "pv-c", metav1.DeleteOptions{}))
	p.removePod("web")
	p.detached()
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
