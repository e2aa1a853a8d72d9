package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
)

// attachBy creates an attachment that no controller made.
func (p *plane) attachBy(name, attacher, node string, change ...func(*storagev1.VolumeAttachment)) error {
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{Attacher: attacher, NodeName: node},
	}
	for _, f := range change {
		f(va)
	}
	_, err := p.client.StorageV1().VolumeAttachments().Create(p.ctx, va, metav1.CreateOptions{})
	return err
}

// describes writes the volume into the attachment itself.
func (p *plane) describes(handle string) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) {
		va.Spec.Source.InlineVolumeSpec = &corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: p.conn.Name, VolumeHandle: handle},
			},
		}
	}
}

func (p *plane) deleteAttachment(name string) {
	p.t.Helper()
	p.must(p.client.StorageV1().VolumeAttachments().Delete(p.ctx, name, metav1.DeleteOptions{}))
}

// seenOn waits until the attach/detach controller has handled all earlier changes of a node: a volume that
// is added later is attached.
func (p *plane) seenOn(node string, others ...string) {
	p.t.Helper()
	name := strings.ToLower(fmt.Sprint("seen-", len(p.driver.Volumes())))
	handle := p.createBoundVolume(name)
	p.createPod(name, node, name)
	p.waitForAttached(node, append(others, handle)...)
}

// TestDummyAttacher: attachments of the dummy attacher are attached without a driver, and are deleted
// immediately.
func TestDummyAttacher(t *testing.T) {
	p := newPlane(t)
	const dummy = "dummy.example.com"
	p.stop()
	p.tune = func(o *app.ControlPlaneOptions) { o.DummyAttacher = dummy }
	p.start()
	if err := p.attachBy("by-hand", "csi/dummy", "n1", p.describes("h")); err == nil ||
		!strings.Contains(err.Error(), "attacher") {
		t.Errorf("csi/dummy: %v", err)
	}
	handle := p.createBoundVolume("c", func(v *corev1.PersistentVolume) { v.Spec.CSI.Driver = dummy })
	p.createPod("web", "n1", "c")
	va := p.attachment("attached", func(va storagev1.VolumeAttachment) bool { return va.Status.Attached })
	if len(va.Finalizers) > 0 || len(p.driver.Methods()) > 0 && p.calls("ControllerPublishVolume") > 0 {
		t.Errorf("finalizers %v, calls %v", va.Finalizers, p.driver.Methods())
	}
	p.eventually(func() string {
		n, err := p.client.CoreV1().Nodes().Get(p.ctx, "n1", metav1.GetOptions{})
		p.must(err)
		if len(n.Status.VolumesAttached) != 1 ||
			string(n.Status.VolumesAttached[0].Name) != volume.UniqueName(dummy, handle) {
			return fmt.Sprint("node may mount ", n.Status.VolumesAttached)
		}
		return ""
	})
	p.deletePod("web")
	p.waitForDetached()
}

// TestAttachmentDescribesItsVolume: an attachment without a volume object is attached and detached as its
// own spec says.
func TestAttachmentDescribesItsVolume(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	p.must(p.attachBy("by-hand", p.conn.Name, "n1", p.describes(handle)))
	p.attachment("attached", func(va storagev1.VolumeAttachment) bool { return va.Status.Attached })
	p.on(handle, "id-n1")
	p.seenOn("n1")
	p.deleteAttachment("by-hand")
	p.on(handle)
	err := p.attachBy("empty", p.conn.Name, "n1", func(va *storagev1.VolumeAttachment) {
		va.Spec.Source.InlineVolumeSpec = &corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}},
		}
	})
	if err == nil {
		p.waitForEvent("VolumeAttachment", "empty", volume.ReasonVolumeMissing, "no CSI volume")
	} else if !strings.Contains(err.Error(), "csi") {
		t.Errorf("an attachment of no CSI volume: %v", err)
	}
}

// TestWhoKnowsTheNodesID: the node's id comes from the driver's registration, then from the attachment,
// then from the Node. A detach uses the id of the attach.
func TestWhoKnowsTheNodesID(t *testing.T) {
	p := newPlane(t, func(c *csitest.Config) { c.OtherNodes = append(c.OtherNodes, "id-said", "id-old", "id-new") })
	a, b, c := p.createBoundVolume("a"), p.createBoundVolume("b"), p.createBoundVolume("c")
	_, err := p.client.CoreV1().Nodes().Patch(p.ctx, "n1", types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, volume.AnnLegacyNodeID, `{"`+p.conn.Name+`":"id-old"}`),
		metav1.PatchOptions{})
	p.must(err)
	said := func(va *storagev1.VolumeAttachment) {
		va.Annotations = map[string]string{volume.AnnNodeID: "id-said"}
	}
	p.must(p.attachBy("registered", p.conn.Name, "n1", p.describes(a), said))
	p.on(a, "id-n1")
	p.whileStopped(func() { p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, "n1", metav1.DeleteOptions{})) })
	p.must(p.attachBy("said", p.conn.Name, "n1", p.describes(b), said))
	p.on(b, "id-said")
	p.must(p.attachBy("old", p.conn.Name, "n1", p.describes(c)))
	p.on(c, "id-old")
	p.whileStopped(func() {
		_, err = p.client.StorageV1().CSINodes().Create(p.ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: p.conn.Name, NodeID: "id-new"}}},
		}, metav1.CreateOptions{})
		p.must(err)
	})
	for _, name := range []string{"registered", "said", "old"} {
		p.deleteAttachment(name)
	}
	p.waitForDetached()
}

// called waits until the attacher has noticed the driver's id of n1: a new volume is attached to that id.
func (p *plane) called(id string) {
	p.t.Helper()
	handle, tries := p.createBoundVolume("tried"), 0
	p.eventually(func() string {
		tries++
		name := fmt.Sprint("try-", tries)
		p.must(p.attachBy(name, p.conn.Name, "n1", p.describes(handle)))
		var at []string
		p.eventually(func() string {
			all := p.driver.Volumes()
			if at = all[slices.IndexFunc(all, func(v csitest.Volume) bool { return v.ID == handle })].Nodes; len(at) == 0 {
				return "the volume is nowhere"
			}
			return ""
		})
		p.deleteAttachment(name)
		p.on(handle)
		if !slices.Equal(at, []string{id}) {
			return fmt.Sprint("n1 is called ", at)
		}
		return ""
	})
}

// TestNodeGetsAnotherName: a driver registers with another id of the node. It is called to undo what it
// may have done for the old id.
func TestNodeGetsAnotherName(t *testing.T) {
	p := newPlane(t, func(c *csitest.Config) { c.OtherNodes = append(c.OtherNodes, "id-new") })
	handle := p.createBoundVolume("c")
	called, open := p.gate("ControllerPublishVolume", true, context.DeadlineExceeded)
	p.createPod("web", "n1", "c")
	<-called
	p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, "n1", metav1.DeleteOptions{}))
	_, err := p.client.StorageV1().CSINodes().Create(p.ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: p.conn.Name, NodeID: "id-new"}}},
	}, metav1.CreateOptions{})
	p.must(err)
	p.called("id-new")
	open()
	p.waitForAttached("n1", handle)
	p.on(handle, "id-new")
	p.deletePod("web")
	p.waitForDetached()
}

// TestVolumesOfThePodItself: a CSI volume in the Pod is not attached, and the claim of a generic ephemeral
// volume only if the Pod controls it.
func TestVolumesOfThePodItself(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("web-scratch")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{
		NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}},
		Volumes: []corev1.Volume{
			{Name: "own", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: p.conn.Name}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{
				Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
					Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
						Resources: corev1.VolumeResourceRequirements{
							Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
						},
					},
				}},
			}},
		},
	}}
	pod, err := p.client.CoreV1().Pods("default").Create(p.ctx, pod, metav1.CreateOptions{})
	p.must(err)
	p.seenOn("n1")
	if all := p.attachments(); len(all) != 1 {
		t.Fatal("attachments are", all)
	}
	seen := *p.attachments()[0].Spec.Source.PersistentVolumeName
	p.patchClaim("web-scratch", fmt.Sprintf(
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"web","uid":%q,"controller":true}]}}`,
		pod.UID))
	p.waitForAttached("n1", handle, p.getVolume(seen).Spec.CSI.VolumeHandle)
}

// TestAttachRequiredIsSwitched: attachRequired changes while a volume is attached, and while one is used
// without an attachment.
func TestAttachRequiredIsSwitched(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	p.needsAttach(false)
	p.seenNeedless("d")
	p.waitForAttached("n1", handle)
	if all := p.attachments(); len(all) != 1 {
		t.Errorf("attachments are %v", all)
	}
	p.deletePod("web")
	p.waitForDetached()
	p.createPod("web", "n1", "c")
	p.seenNeedless("e")
	if all := p.attachments(); len(all) > 0 {
		t.Errorf("attachments are %v", all)
	}
	p.needsAttach(true)
	p.waitForAttached("n1", handle)
	p.deletePod("web")
	p.waitForDetached()
}

// needsAttach replaces the CSIDriver object.
func (p *plane) needsAttach(required bool) {
	p.t.Helper()
	p.must(p.client.StorageV1().CSIDrivers().Delete(p.ctx, p.conn.Name, metav1.DeleteOptions{}))
	_, err := p.client.StorageV1().CSIDrivers().Create(p.ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: p.conn.Name}, Spec: storagev1.CSIDriverSpec{AttachRequired: &required},
	}, metav1.CreateOptions{})
	p.must(err)
}

// seenNeedless waits until the attach/detach controller has handled n1: an attachment of a driver that does
// not exist is created and deleted.
func (p *plane) seenNeedless(claim string) {
	p.t.Helper()
	before := len(p.attachments())
	p.createBoundVolume(claim, func(v *corev1.PersistentVolume) { v.Spec.CSI.Driver = "absent.example.com" })
	p.createPod(claim, "n1", claim)
	p.attachmentCount(before + 1)
	p.deletePod(claim)
	p.attachmentCount(before)
}

func (p *plane) attachmentCount(want int) {
	p.t.Helper()
	p.eventually(func() string {
		if got := len(p.attachments()); got != want {
			return fmt.Sprint(got, " attachments, not ", want)
		}
		return ""
	})
}

// TestNodeTakesNoMore: an event gives the reason before the driver is called.
func TestNodeTakesNoMore(t *testing.T) {
	p := newPlane(t)
	a, b := p.createBoundVolume("a"), p.createBoundVolume("b")
	p.whileStopped(func() {
		p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, "n1", metav1.DeleteOptions{}))
		_, err := p.client.StorageV1().CSINodes().Create(p.ctx,
			&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{
				Drivers: []storagev1.CSINodeDriver{
					{Name: p.conn.Name, NodeID: "id-n1", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](1)}},
				},
			}}, metav1.CreateOptions{})
		p.must(err)
	})
	p.createPod("first", "n1", "a")
	p.waitForAttached("n1", a)
	p.createPod("second", "n1", "b")
	p.waitForEvent("Pod", "second", volume.ReasonFailedAttach, "pv-b", "n1", "as many volumes", "(1)")
	if n := p.calls("ControllerPublishVolume"); n != 1 {
		t.Errorf("the driver was asked %d times", n)
	}
	p.deletePod("first")
	p.waitForAttached("n1", b)
	p.deletePod("second")
	p.waitForDetached()
}

// TestAttachmentsOfNothing: attachments whose volume, node or Pod does not exist are deleted, but not
// attachments that another program made, whose names differ.
func TestAttachmentsOfNothing(t *testing.T) {
	p := newPlane(t)
	idle := p.createBoundVolume("idle")
	name := func(handle, node string) string { return attach.NameOf(p.conn.Name, handle, node) }
	of := func(pv string) func(*storagev1.VolumeAttachment) {
		return func(va *storagev1.VolumeAttachment) { va.Spec.Source.PersistentVolumeName = &pv }
	}
	p.must(p.attachBy("by-hand", p.conn.Name, "n1", of("pv-idle")))
	p.must(p.attachBy(name("nothing", "n1"), p.conn.Name, "n1", of("nothing")))
	p.must(p.attachBy(name(idle, "nowhere"), p.conn.Name, "nowhere", of("pv-idle")))
	p.must(p.attachBy(name(idle, "n2"), p.conn.Name, "n2", of("pv-idle")))
	p.eventually(func() string {
		all := p.attachments()
		if len(all) != 1 || all[0].Name != "by-hand" || !all[0].Status.Attached {
			return fmt.Sprintf("attachments are %+v", all)
		}
		return ""
	})
	p.must(p.client.StorageV1().VolumeAttachments().Delete(p.ctx, "by-hand", metav1.DeleteOptions{}))
	p.waitForDetached()
}

// TestNodeDeletedAndMadeAgain: as long as a Pod exists, its node may have everything mounted, even if the
// Node is deleted. Nothing is detached, and nothing is attached again when the Node is back.
func TestNodeDeletedAndMadeAgain(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	p.reportInUse("n1", handle)
	p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, "n1", metav1.DeleteOptions{}))
	p.must(p.client.CoreV1().Nodes().Delete(p.ctx, "n1", metav1.DeleteOptions{}))
	// Another volume's way leaves time to do the wrong thing.
	other := p.createBoundVolume("other")
	p.createPod("job", "n2", "other")
	p.waitForAttached("n2", other)
	p.deletePod("job")
	p.waitForAttached("n2")
	if n := p.calls("ControllerUnpublishVolume"); n > 1 {
		t.Errorf("the driver was asked to detach %d times", n)
	}
	p.createNode("n1")
	p.waitForAttached("n1", handle)
	if n := p.calls("ControllerPublishVolume"); n != 2 {
		t.Errorf("the driver was asked to attach %d times", n)
	}
	p.must(p.client.CoreV1().Nodes().Delete(p.ctx, "n1", metav1.DeleteOptions{}))
	p.deletePod("web")
	p.waitForDetached()
}

// TestRestartRepeatsNothing: new controllers that find everything attached write nothing and call no
// driver.
func TestRestartRepeatsNothing(t *testing.T) {
	p := newPlane(t)
	const volumes = 20
	for i := range volumes {
		p.createBoundVolume(fmt.Sprint("c", i))
		p.createPod(fmt.Sprint("p", i), fmt.Sprint("n", i%2+1), fmt.Sprint("c", i))
	}
	p.eventually(func() string {
		all, err := p.client.CoreV1().Nodes().List(p.ctx, metav1.ListOptions{})
		p.must(err)
		if len(all.Items[0].Status.VolumesAttached)+len(all.Items[1].Status.VolumesAttached) < volumes {
			return "not all are attached"
		}
		return ""
	})
	p.stop()
	from := len(p.writes.since(0))
	p.start()
	late := p.createBoundVolume("late")
	p.createPod("late", "n1", "late")
	p.waitForEvent("Pod", "late", volume.ReasonAttached, "pv-late")
	name := attach.NameOf(p.conn.Name, late, "n1")
	for _, w := range p.writes.since(from) {
		if strings.HasPrefix(w.role, "attach") && !strings.Contains(w.path, "/events") && !w.about("late") &&
			!w.about(late) && !w.about(name) {
			t.Errorf("restarted controllers wrote %s", w)
		}
	}
	for _, c := range p.driver.Calls() {
		if _, ok := c.Request.(*csipb.ControllerUnpublishVolumeRequest); ok {
			t.Errorf("a volume was detached: %v", c.Request)
		}
	}
	if n := p.calls("ControllerPublishVolume"); n != volumes+1 {
		t.Errorf("%d calls attached %d volumes", n, volumes+1)
	}
}
