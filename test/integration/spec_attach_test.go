package integration

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi/csitest"
)

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

// TestWhoWritesTheStatusOfAttachments: only the attacher has the right to, no other controller and no node
// (S1-072).
func TestWhoWritesTheStatusOfAttachments(t *testing.T) {
	p := newPlane(t)
	users := map[string][]string{
		"somebody": {"system:authenticated"}, "system:node:n1": {"system:nodes", "system:authenticated"},
	}
	for _, d := range app.Declarations() {
		users[app.User(d.Name)] = nil
	}
	for user, groups := range users {
		for verb, want := range map[string]bool{"patch": user == app.User("attacher"), "update": false} {
			if got := p.may(verb, "storage.k8s.io", "volumeattachments/status", user, groups...); got != want {
				t.Errorf("whether %s may %s the status of attachments: %v", user, verb, got)
			}
		}
	}
	p.createClass("fast")
	p.createClaim("c", "fast")
	p.waitForBound("c")
	handle := p.getVolume(p.getClaim("c").Spec.VolumeName).Spec.CSI.VolumeHandle
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	p.deletePod("web")
	p.waitForDetached()
	written := map[string]int{}
	for _, w := range p.writes.since(0) {
		if strings.Contains(w.path, "/volumeattachments/") && strings.HasSuffix(w.path, "/status") {
			written[w.role]++
		}
	}
	if len(written) != 1 || written["attacher"] == 0 {
		t.Errorf("the status of an attachment was written by %v", written)
	}
}
