package integration

import (
	"fmt"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/api/equality"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// listing sets a short interval at which drivers list what they have attached.
func (p *plane) listing() {
	p.t.Helper()
	p.stop()
	p.tune = func(o *app.ControlPlaneOptions) { o.ReconcileSync = 20 * time.Millisecond }
	p.start()
}

// rounds waits until the driver was called this many times more.
func (p *plane) rounds(n int) {
	p.t.Helper()
	from := p.calls("ListVolumes")
	p.eventually(func() string {
		if got := p.calls("ListVolumes") - from; got < n {
			return fmt.Sprint("asked ", got, " times")
		}
		return ""
	})
}

// publish attaches a volume at the driver without an attachment.
func (p *plane) publish(handle, nodeID string) {
	p.t.Helper()
	_, err := p.driver.ControllerPublishVolume(p.ctx, &csipb.ControllerPublishVolumeRequest{
		VolumeId: handle, NodeId: nodeID,
		VolumeCapability: csi.Capability(csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, false, "", nil),
	})
	p.must(err)
}

func (p *plane) unpublish(handle, nodeID string) {
	p.t.Helper()
	_, err := p.driver.ControllerUnpublishVolume(p.ctx,
		&csipb.ControllerUnpublishVolumeRequest{VolumeId: handle, NodeId: nodeID})
	p.must(err)
}

// on waits until the driver has a volume on exactly these nodes.
func (p *plane) on(handle string, nodes ...string) {
	p.t.Helper()
	p.eventually(func() string {
		for _, v := range p.driver.Volumes() {
			if v.ID == handle && fmt.Sprint(v.Nodes) != fmt.Sprint(nodes) {
				return fmt.Sprintf("volume %s is on %v", v.Name, v.Nodes)
			}
		}
		return ""
	})
}

// TestDriverForgetsAnAttachment: a driver that reports an attached volume as not attached is called to attach it
// again. The volume stays attached for its node, and the error in the status is removed when the driver agrees.
func TestDriverForgetsAnAttachment(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	p.listing()
	p.rounds(3)
	if n := p.calls("ControllerPublishVolume"); n != 1 {
		t.Fatalf("%d calls attached a volume that was attached", n)
	}
	before := p.attachments()[0]
	p.unpublish(handle, "id-n1")
	p.on(handle, "id-n1")
	p.waitForEvent("VolumeAttachment", before.Name, volume.ReasonAttachmentVanished, "pv-c", "n1")
	p.rounds(3)
	p.eventually(func() string {
		if after := p.attachments()[0]; !equality.Semantic.DeepEqual(after.Status, before.Status) {
			return fmt.Sprintf("the attachment says %+v", after.Status)
		}
		return ""
	})
	if n := p.calls("ControllerPublishVolume"); n != 2 {
		t.Errorf("%d calls attached the volume", n)
	}
	p.deletePod("web")
	p.waitForDetached()
}

// TestDriverAttachedWhatNobodyAskedFor: a volume that is attached without an attachment is detached, unless
// its node uses it, or the volume or the node is unknown.
func TestDriverAttachedWhatNobodyAskedFor(t *testing.T) {
	p := newPlane(t, func(c *csitest.Config) { c.OtherNodes = append(c.OtherNodes, "id-elsewhere") })
	lost, used, far := p.createBoundVolume("lost"), p.createBoundVolume("used"), p.createBoundVolume("far")
	made, err := p.conn.ControllerClient().CreateVolume(p.ctx, &csipb.CreateVolumeRequest{
		Name: "foreign", VolumeCapabilities: []*csipb.VolumeCapability{
			csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "", nil),
		},
	})
	p.must(err)
	foreign := made.GetVolume().GetVolumeId()
	p.reportInUse("n1", used)
	p.publish(lost, "id-n1")
	p.publish(used, "id-n1")
	p.publish(far, "id-elsewhere")
	p.publish(foreign, "id-n1")
	p.listing()
	p.on(lost)
	p.waitForEvent("PersistentVolume", "pv-lost", volume.ReasonUnaskedAttachment, "pv-lost", "n1")
	p.rounds(4)
	p.on(used, "id-n1")
	p.on(far, "id-elsewhere")
	p.on(foreign, "id-n1")
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.ControllerUnpublishVolumeRequest); ok &&
			(r.GetVolumeId() != lost || r.GetNodeId() != "id-n1") {
			t.Errorf("the driver was asked to detach %v", r)
		}
	}
	p.reportInUse("n1")
	p.on(used)
}

// TestAttachmentLostWhileNobodyLooked: an attachment was deleted with its finalizer while no controller ran
// (kubernetes/kubernetes#77988). The volume can be attached to another node nevertheless.
func TestAttachmentLostWhileNobodyLooked(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	p.stop()
	p.deletePod("web")
	p.lose("volumeattachments/" + p.attachments()[0].Name)
	p.listing()
	p.on(handle)
	p.createPod("next", "n2", "c")
	p.waitForAttached("n2", handle)
	p.deletePod("next")
	p.waitForDetached()
}

// TestDriverThatListsNonsense: an endless list, invalid answers and errors change nothing.
func TestDriverThatListsNonsense(t *testing.T) {
	p := newPlane(t)
	handle := p.createBoundVolume("c")
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	p.publish(handle, "id-n2")
	p.driver.OnCall("ListVolumes", func(n int, req any) csitest.Action {
		if req.(*csipb.ListVolumesRequest).GetStartingToken() == "" && n%2 == 0 {
			return csitest.Action{Answer: csitest.Raw("\xff\xff")}
		}
		entry := &csipb.ListVolumesResponse_Entry{
			Volume: &csipb.Volume{VolumeId: handle},
			Status: &csipb.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{"id-n2"}},
		}
		return csitest.Action{
			Answer: &csipb.ListVolumesResponse{Entries: []*csipb.ListVolumesResponse_Entry{entry, nil, {}}, NextToken: "on"},
		}
	})
	p.listing()
	p.rounds(12)
	if p.calls("ControllerPublishVolume") > 1 || p.calls("ControllerUnpublishVolume") > 0 {
		t.Errorf("calls are %v", p.driver.Methods())
	}
	before := ""
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.ListVolumesRequest); ok {
			if token := r.GetStartingToken(); token != "" && token == before {
				t.Fatal("the driver was followed round and round")
			}
			before = r.GetStartingToken()
		}
	}
	p.driver.OnCall("ListVolumes", nil)
	p.on(handle, "id-n1")
	p.deletePod("web")
	p.waitForDetached()
}
