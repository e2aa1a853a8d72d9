package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// TestQuiet: objects to which nothing happens are written neither while other objects change nor after the
// controllers start again.
func TestQuiet(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	p.createLateClass("late", p.conn.Name)
	p.createVolume("quiet-free", "2Gi", "none")
	p.createVolume("quiet-taken", "2Gi", "")
	p.createClaim("quiet-static", "")
	p.createClaim("quiet-bound", "fast")
	p.createClaim("quiet-late", "late")
	p.createClaim("quiet-waiting", "absent")
	p.createClaim("quiet-used", "fast")
	p.createPod("quiet-pod", "n1", "quiet-used")
	p.waitForClaimPhase("quiet-static", corev1.ClaimBound, "quiet-taken")
	p.waitForVolumePhase("quiet-taken", corev1.VolumeBound)
	p.waitForVolumePhase("quiet-free", corev1.VolumeAvailable)
	p.waitForBound("quiet-bound")
	p.waitForBound("quiet-used")
	p.waitForSettled()
	p.waitForSettled()
	p.waitForEvent("PersistentVolumeClaim", "quiet-late", volume.ReasonWaitForFirstConsumer)
	p.waitForEvent("PersistentVolumeClaim", "quiet-waiting", volume.ReasonProvisioningFailed)
	p.waitForEvent("PersistentVolumeClaim", "quiet-bound", volume.ReasonProvisioningSucceeded)
	p.waitForEvent("PersistentVolumeClaim", "quiet-used", volume.ReasonProvisioningSucceeded)
	p.waitForAttached("n1", p.getVolume(p.getClaim("quiet-used").Spec.VolumeName).Spec.CSI.VolumeHandle)
	p.waitForEvent("Pod", "quiet-pod", volume.ReasonAttached)
	p.runAnotherVolume("before")
	mark := len(p.writes.since(0))
	for _, name := range []string{"a", "b", "c"} {
		p.runAnotherVolume(name)
	}
	for _, w := range p.writes.since(mark) {
		if w.about("quiet-") {
			t.Errorf("written while nothing changed: %s", w)
		}
	}
	p.stop()
	p.start()
	mark = len(p.writes.since(0))
	p.runAnotherVolume("d")
	for _, w := range p.writes.since(mark) {
		// Reporting again why a claim waits does no harm.
		if kind, _ := objectOf(w.path); w.about("quiet-") && kind != "events" {
			t.Errorf("written after a start: %s", w)
		}
	}
}

// runAnotherVolume creates and deletes a claim with its Pod.
func (p *plane) runAnotherVolume(name string) {
	p.t.Helper()
	p.createClaim(name, "late")
	p.createPod(name, "", name)
	node := p.waitForPlacement(name)
	handle := p.getVolume(p.getClaim(name).Spec.VolumeName).Spec.CSI.VolumeHandle
	p.eventually(func() string {
		n, err := p.client.CoreV1().Nodes().Get(p.ctx, node, metav1.GetOptions{})
		p.must(err)
		for _, v := range n.Status.VolumesAttached {
			if string(v.Name) == volume.UniqueName(p.conn.Name, handle) {
				return ""
			}
		}
		return fmt.Sprintf("node %s has %v", node, n.Status.VolumesAttached)
	})
	p.deletePod(name)
	p.deleteClaim(name)
	p.waitForNoClaim(name)
	p.eventually(func() string {
		for _, v := range p.driver.Volumes() {
			if v.ID == handle {
				return fmt.Sprintf("volume %s is there", handle)
			}
		}
		return ""
	})
}
