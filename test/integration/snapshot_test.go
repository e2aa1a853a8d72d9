package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

const snapshotAPI = "/apis/snapshot.storage.k8s.io/v1/"

// TestRestore: a claim gets the data of a snapshot that an administrator has made known, and until then an event says
// what is missing.
func TestRestore(t *testing.T) {
	p := newPlane(t, func(c *csitest.Config) {
		c.Snapshots, c.Controller.Snapshot, c.Controller.GetSnapshot = []string{"snap-1"}, true, true
	})
	p.createClass("fast")
	n := 0
	refused := func(words ...string) {
		t.Helper()
		n++
		name := fmt.Sprint("c", n)
		p.createClaim(name, "fast", restores)
		p.waitForEvent("PersistentVolumeClaim", name, volume.ReasonProvisioningFailed, append(words, "snapshot default/s")...)
		p.deleteClaim(name)
	}
	refused("does not exist")
	p.custom("POST", "namespaces/default/volumesnapshots",
		`{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"name":"s"},
		"spec":{"source":{"volumeSnapshotContentName":"content"}}}`)
	p.waitForEvent("VolumeSnapshot", "s", volume.ReasonContentMissing, "content content")
	refused("is not ready")
	p.custom("POST", "volumesnapshotcontents",
		`{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshotContent","metadata":{"name":"content"},
		"spec":{"driver":"`+p.conn.Name+
			`","deletionPolicy":"Delete","sourceVolumeMode":"Filesystem","source":{"snapshotHandle":"snap-1"},
		"volumeSnapshotRef":{"namespace":"default","name":"s"}}}`)
	p.waitForReady("s")
	// Any user may create a snapshot that names another's content.
	p.custom("POST", "namespaces/default/volumesnapshots",
		`{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"name":"thief"},
		"spec":{"source":{"volumeSnapshotContentName":"content"}}}`)
	p.waitForEvent("VolumeSnapshot", "thief", volume.ReasonContentMisbound, "is for another snapshot")
	p.createClaim("raw", "fast", restores, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	})
	p.waitForEvent("PersistentVolumeClaim", "raw", volume.ReasonProvisioningFailed, volume.AnnAllowModeChange)
	if calls := p.calls("CreateVolume"); calls > 0 {
		t.Errorf("%d calls of CreateVolume: an empty volume is no restored snapshot", calls)
	}
	called, open := p.gate("CreateVolume", true, nil)
	p.createClaim("good", "fast", restores)
	<-called
	p.protected(true)
	open()
	p.waitForBound("good")
	if got := p.creations()[0].GetVolumeContentSource().GetSnapshot().GetSnapshotId(); got != "snap-1" {
		t.Errorf("the volume is made from snapshot %q", got)
	}
	p.custom("PATCH", "volumesnapshotcontents/content",
		`{"metadata":{"annotations":{"`+volume.AnnAllowModeChange+`":"true"}}}`)
	p.waitForBound("raw")
	p.protected(false)
	p.agrees()
	// What a process that died has protected is released by the next one.
	p.stop()
	p.custom("PATCH", "namespaces/default/volumesnapshots/s",
		`{"metadata":{"finalizers":["example.com/other","`+volume.FinalizerRestoring+`"]}}`)
	p.start()
	p.protected(false)
	p.eventually(func() string {
		var left struct{ Metadata struct{ Finalizers []string } }
		p.read("namespaces/default/volumesnapshots/s", &left)
		if !slices.Contains(left.Metadata.Finalizers, "example.com/other") ||
			!slices.Contains(left.Metadata.Finalizers, volume.FinalizerSnapshotBound) {
			return fmt.Sprintf("finalizers left: %v", left.Metadata.Finalizers)
		}
		return ""
	})
}

// protected waits until the snapshot has, or does not have, the finalizer that keeps it for volumes that
// are made from it.
func (p *plane) protected(want bool) {
	p.t.Helper()
	p.eventually(func() string {
		var s struct{ Metadata struct{ Finalizers []string } }
		p.read("namespaces/default/volumesnapshots/s", &s)
		if slices.Contains(s.Metadata.Finalizers, volume.FinalizerRestoring) != want {
			return fmt.Sprintf("the snapshot has finalizers %v", s.Metadata.Finalizers)
		}
		return ""
	})
}

func restores(c *corev1.PersistentVolumeClaim) {
	c.Spec.DataSource = &corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(volume.GroupSnapshot), Kind: volume.KindSnapshot, Name: "s",
	}
}

// custom writes a custom resource of snapshots. These are served a moment after the server is ready.
func (p *plane) custom(verb, path, body string) {
	p.t.Helper()
	tried := false
	p.eventually(func() string {
		r := p.client.Discovery().RESTClient().Verb(verb).AbsPath(snapshotAPI + path)
		if verb == "PATCH" {
			r = r.SetHeader("Content-Type", string(types.MergePatchType))
		}
		err := r.Body([]byte(body)).Do(p.ctx).Error()
		if err == nil || tried && apierrors.IsAlreadyExists(err) {
			return ""
		}
		tried = true
		return err.Error()
	})
}

func (p *plane) read(path string, into any) {
	p.t.Helper()
	body, err := p.client.Discovery().RESTClient().Get().AbsPath(snapshotAPI + path).DoRaw(p.ctx)
	p.must(err)
	p.must(json.Unmarshal(body, into))
}
