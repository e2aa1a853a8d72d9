package integration

import (
	"fmt"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// waitForSettled waits until there are no intents.
func (p *plane) waitForSettled() {
	p.t.Helper()
	p.eventually(func() string {
		all, err := p.client.CoreV1().ConfigMaps("").List(p.ctx, metav1.ListOptions{LabelSelector: volume.LabelIntents})
		p.must(err)
		for _, o := range all.Items {
			return fmt.Sprintf("intents are left: %v", o.Data)
		}
		return ""
	})
}

// agrees fails the test when the volumes at the driver differ from the volume objects.
func (p *plane) agrees() {
	p.t.Helper()
	all, err := p.client.CoreV1().PersistentVolumes().List(p.ctx, metav1.ListOptions{})
	p.must(err)
	var objects, volumes []string
	for i := range all.Items {
		objects = append(objects, all.Items[i].Spec.CSI.VolumeHandle)
	}
	for _, v := range p.driver.Volumes() {
		volumes = append(volumes, v.ID)
	}
	slices.Sort(objects)
	slices.Sort(volumes)
	if !slices.Equal(objects, volumes) {
		p.t.Errorf("objects stand for %v, the driver has %v", objects, volumes)
	}
}

// nothingLeft waits until the only volume objects are these, and until the driver has no volumes.
func (p *plane) nothingLeft(but ...string) {
	p.t.Helper()
	p.eventually(func() string {
		all, err := p.client.CoreV1().PersistentVolumes().List(p.ctx, metav1.ListOptions{})
		p.must(err)
		for i := range all.Items {
			if v := &all.Items[i]; !slices.Contains(but, v.Name) {
				return fmt.Sprintf("volume object %s is there, %s, finalizers %v", v.Name, v.Status.Phase, v.Finalizers)
			}
		}
		if left := p.driver.Volumes(); len(left) > 0 {
			return fmt.Sprintf("the driver has %+v", left)
		}
		return ""
	})
}

// creations returns all requests of CreateVolume.
func (p *plane) creations() (all []*csipb.CreateVolumeRequest) {
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.CreateVolumeRequest); ok {
			all = append(all, r)
		}
	}
	return all
}

// gate holds the first call of a method, before its work or after it, until open is called. Then the call
// returns the error.
func (p *plane) gate(method string, after bool, err error) (called <-chan struct{}, open func()) {
	in, out := make(chan struct{}), make(chan struct{})
	p.driver.OnCall(method, func(n int, _ any) csitest.Action {
		if n > 1 {
			return csitest.Action{}
		}
		close(in)
		<-out
		return csitest.Action{After: after, Err: err}
	})
	return in, func() { close(out) }
}

// TestProvision: a claim gets a volume with all fields that other programs read. Both are deleted together.
func TestProvision(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast", func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{"tier": "1", "fsType": "xfs"}
		c.MountOptions = []string{"noatime"}
	})
	p.createClaim("c", "fast")
	p.waitForBound("c")
	p.waitForSettled()
	c := p.getClaim("c")
	v := p.getVolume("pvc-" + string(c.UID))
	for what, ok := range map[string]bool{
		"request in both spellings": c.Annotations[volume.AnnStorageProvisioner] == p.conn.Name &&
			c.Annotations[volume.AnnBetaStorageProvisioner] == p.conn.Name,
		"the claim names the volume": c.Spec.VolumeName == v.Name,
		"the volume names the claim": v.Spec.ClaimRef.UID == c.UID,
		"who made it":                v.Annotations[volume.AnnProvisionedBy] == p.conn.Name,
		"class, policy and options": v.Spec.StorageClassName == "fast" &&
			v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
			slices.Equal(v.Spec.MountOptions, []string{"noatime"}),
		"filesystem type":                v.Spec.CSI.FSType == "xfs",
		"kept until the driver is asked": slices.Contains(v.Finalizers, volume.FinalizerProvisioner),
		"parameters (S1-026)": p.creations()[0].GetParameters()["fsType"] == "xfs" &&
			p.creations()[0].GetParameters()["tier"] == "1",
		"filesystem of the capability": p.creations()[0].GetVolumeCapabilities()[0].GetMount().GetFsType() == "xfs",
	} {
		if !ok {
			t.Errorf("%s: claim %+v, volume %+v, call %+v", what, c.Annotations, v, p.creations()[0])
		}
	}
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonProvisioningSucceeded, v.Name)
	p.agrees()
	p.deleteClaim("c")
	p.nothingLeft()
	p.waitForNoClaim("c")
}

// sameArguments requires at least this many calls of CreateVolume, all with the same arguments.
func (p *plane) sameArguments(least int) {
	p.t.Helper()
	all := p.creations()
	if len(all) < least {
		p.t.Errorf("%d calls of CreateVolume, want %d", len(all), least)
	}
	for _, r := range all[1:] {
		if !proto.Equal(r, all[0]) {
			p.t.Errorf("called with %v, then with %v", all[0], r)
		}
	}
}
