package integration

import (
	"maps"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

func clones(source string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source}
	}
}

// TestCloneKeepsItsSource: a claim that is deleted while it is cloned exists, with its volume, until the
// clone exists, even if the process that clones it ends in the meantime.
func TestCloneKeepsItsSource(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	p.createClaim("source", "fast")
	p.waitForBound("source")
	original := p.getClaim("source").Spec.VolumeName
	called, open := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
		once.Do(func() { close(called); <-open })
		return csitest.Action{After: true}
	})
	p.createClaim("copy", "fast", clones("source"))
	<-called
	p.deleteClaim("source")
	p.eventually(func() string {
		if got := p.getClaim("source").Finalizers; slices.Equal(got, []string{volume.FinalizerCloning}) {
			return ""
		}
		return "only the copy keeps the source"
	})
	close(open)
	p.stop()
	p.start()
	p.waitForBound("copy")
	p.waitForNoClaim("source")
	p.waitForNoVolume(original)
	p.waitForSettled()
	p.agrees()
	if n := len(p.driver.Volumes()); n != 1 {
		t.Errorf("%d volumes at the driver, want the copy alone", n)
	}
	p.createClaim("late", "fast", clones("source"))
	p.waitForEvent("PersistentVolumeClaim", "late", volume.ReasonProvisioningFailed, "claim default/source does not exist")
}

// TestManyClonesOfOneClaim: the source is written once for all clones, and no clone fails.
func TestManyClonesOfOneClaim(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	p.createClaim("source", "fast")
	p.waitForBound("source")
	before := len(p.writes.since(0))
	names := []string{"c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"}
	for _, name := range names {
		p.createClaim(name, "fast", clones("source"))
	}
	for _, name := range names {
		p.waitForBound(name)
	}
	written := 0
	for _, w := range p.writes.since(before) {
		if w.path == "/api/v1/namespaces/default/persistentvolumeclaims/source" {
			written++
		}
		if w.code >= 400 {
			t.Errorf("%+v failed", w)
		}
	}
	if written != 1 {
		t.Errorf("the source was written %d times", written)
	}
}

// TestAttributesClass: the parameters of the VolumeAttributesClass are sent to the driver, and its name is
// written to the volume. Events report mistakes in it.
func TestAttributesClass(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	gold := func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("gold") }
	p.createClaim("c", "fast", gold)
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonProvisioningFailed,
		"VolumeAttributesClass gold does not exist")
	_, err := p.client.StorageV1().VolumeAttributesClasses().Create(p.ctx, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: p.conn.Name, Parameters: map[string]string{"iops": "9000"},
	}, metav1.CreateOptions{})
	p.must(err)
	p.waitForBound("c")
	c := p.getClaim("c")
	if got := p.creations()[0].GetMutableParameters(); !maps.Equal(got, map[string]string{"iops": "9000"}) {
		t.Errorf("mutable parameters %v", got)
	}
	if v := p.getVolume(c.Spec.VolumeName); ptr.Deref(v.Spec.VolumeAttributesClassName, "") != "gold" ||
		ptr.Deref(c.Status.CurrentVolumeAttributesClassName, "") != "gold" {
		t.Errorf("the volume is of class %v, the claim of %v", v.Spec.VolumeAttributesClassName,
			c.Status.CurrentVolumeAttributesClassName)
	}
}

// TestAttributesNeedTheDriver: an event names a driver that does not support attributes.
func TestAttributesNeedTheDriver(t *testing.T) {
	p := newPlane(t, func(c *csitest.Config) { c.Controller.Modify = false })
	p.createClass("fast")
	p.createClaim("c", "fast", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("gold") })
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonProvisioningFailed, p.conn.Name, "MODIFY_VOLUME")
	if n := p.calls("CreateVolume"); n > 0 {
		t.Errorf("the driver was called %d times", n)
	}
}
