package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// TestQuiet: objects with which nothing happens are not written while others
// live their lives, and not when the controllers start again.
func TestQuiet(t *testing.T) {
	p := newPlane(t)
	p.makeClass("fast")
	p.lateClass("late", p.conn.Name)
	p.makeVolume("quiet-free", "2Gi", "none")
	p.makeVolume("quiet-taken", "2Gi", "")
	p.makeClaim("quiet-static", "")
	p.makeClaim("quiet-bound", "fast")
	p.makeClaim("quiet-late", "late")
	p.makeClaim("quiet-waiting", "absent")
	p.makeClaim("quiet-used", "fast")
	p.pod("quiet-pod", "n1", "quiet-used")
	p.claimPhase("quiet-static", corev1.ClaimBound, "quiet-taken")
	p.volumePhase("quiet-taken", corev1.VolumeBound)
	p.volumePhase("quiet-free", corev1.VolumeAvailable)
	p.bound("quiet-bound")
	p.bound("quiet-used")
	p.settled()
	p.settled()
	p.tells("PersistentVolumeClaim", "quiet-late", volume.ReasonWaitForFirstConsumer)
	p.tells("PersistentVolumeClaim", "quiet-waiting", volume.ReasonProvisioningFailed)
	p.tells("PersistentVolumeClaim", "quiet-bound", volume.ReasonProvisioningSucceeded)
	p.tells("PersistentVolumeClaim", "quiet-used", volume.ReasonProvisioningSucceeded)
	p.mayMount("n1", p.getVolume(p.claim("quiet-used").Spec.VolumeName).Spec.CSI.VolumeHandle)
	p.tells("Pod", "quiet-pod", volume.ReasonAttached)
	p.busy("before")
	mark := len(p.writes.since(0))
	for _, name := range []string{"a", "b", "c"} {
		p.busy(name)
	}
	for _, w := range p.writes.since(mark) {
		if w.about("quiet-") {
			t.Errorf("written while nothing changed: %s", w)
		}
	}
	p.stop()
	p.start()
	mark = len(p.writes.since(0))
	p.busy("d")
	for _, w := range p.writes.since(mark) {
		// To say again why a claim waits is no harm.
		if kind, _ := objectOf(w.path); w.about("quiet-") && kind != "events" {
			t.Errorf("written after a start: %s", w)
		}
	}
}

// busy lets a claim and its consumer come and go.
func (p *plane) busy(name string) {
	p.t.Helper()
	p.makeClaim(name, "late")
	p.pod(name, "", name)
	node := p.placed(name)
	handle := p.getVolume(p.claim(name).Spec.VolumeName).Spec.CSI.VolumeHandle
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
	p.removePod(name)
	p.removeClaim(name)
	p.noClaim(name)
	p.eventually(func() string {
		for _, v := range p.driver.Volumes() {
			if v.ID == handle {
				return fmt.Sprintf("volume %s is there", handle)
			}
		}
		return ""
	})
}
