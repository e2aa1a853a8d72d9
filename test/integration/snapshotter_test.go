package integration

import (
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// takesSnapshots is a driver that does.
func takesSnapshots(c *csitest.Config) {
	c.Controller.Snapshot, c.Controller.ListSnapshots, c.Controller.GetSnapshot = true, true, true
}

// snapshotObject is what these tests read of a VolumeSnapshot, and of its content.
type snapshotObject struct {
	Metadata struct {
		UID        types.UID
		Finalizers []string
	}
	Spec   struct{ VolumeSnapshotClassName string }
	Status struct {
		Content string `json:"boundVolumeSnapshotContentName"`
		Handle  string `json:"snapshotHandle"`
		Ready   bool   `json:"readyToUse"`
		Size    any    `json:"restoreSize"`
		Created any    `json:"creationTime"`
		Error   struct{ Message string }
	}
}

func (p *plane) createSnapshotClass(name, policy string, isDefault bool) {
	p.t.Helper()
	p.custom("POST", "volumesnapshotclasses", fmt.Sprintf(`{"apiVersion":"snapshot.storage.k8s.io/v1",
		"kind":"VolumeSnapshotClass","metadata":{"name":%q,"annotations":{%q:"%v"}},"driver":%q,"deletionPolicy":%q}`,
		name, volume.AnnDefaultSnapshotClass, isDefault, p.conn.Name, policy))
}

func (p *plane) createSnapshot(name, claim, class string) {
	p.t.Helper()
	if class != "" {
		class = fmt.Sprintf(`,"volumeSnapshotClassName":%q`, class)
	}
	p.custom("POST", "namespaces/default/volumesnapshots", fmt.Sprintf(`{"apiVersion":"snapshot.storage.k8s.io/v1",
		"kind":"VolumeSnapshot","metadata":{"name":%q},"spec":{"source":{"persistentVolumeClaimName":%q}%s}}`,
		name, claim, class))
}

func (p *plane) deleteSnapshot(name string) {
	p.t.Helper()
	p.custom("DELETE", "namespaces/default/volumesnapshots/"+name, "{}")
}

func (p *plane) snapshot(name string) (s snapshotObject) {
	p.t.Helper()
	p.read("namespaces/default/volumesnapshots/"+name, &s)
	return s
}

func (p *plane) waitForReady(name string) snapshotObject {
	p.t.Helper()
	p.eventually(func() string {
		if s := p.snapshot(name); !s.Status.Ready {
			return fmt.Sprintf("snapshot %s: %+v", name, s.Status)
		}
		return ""
	})
	return p.snapshot(name)
}

// waitForGone waits until an object of the API of snapshots is gone.
func (p *plane) waitForGone(path string) {
	p.t.Helper()
	p.eventually(func() string {
		result := p.client.Discovery().RESTClient().Get().AbsPath(snapshotAPI+path).
			SetHeader("Accept", "application/json").Do(p.ctx)
		if apierrors.IsNotFound(result.Error()) {
			return ""
		}
		body, _ := result.Raw()
		return path + " is there: " + string(body)
	})
}

// waitForSnapshots waits until the driver has exactly these snapshots.
func (p *plane) waitForSnapshots(want ...string) {
	p.t.Helper()
	slices.Sort(want)
	p.eventually(func() string {
		if got := p.driver.Snapshots(); !slices.Equal(got, want) {
			return fmt.Sprintf("the driver has snapshots %v, not %v", got, want)
		}
		return ""
	})
}

// TestSnapshot: a snapshot of a claim is created, a claim is created from it, and the driver deletes it when the object
// is deleted.
func TestSnapshot(t *testing.T) {
	p := newPlane(t, takesSnapshots)
	p.createClass("fast")
	p.createSnapshotClass("usual", "Delete", true)
	p.createBoundVolume("data")
	p.createSnapshot("s", "data", "")
	s := p.waitForReady("s")
	handle, content := "id-snapshot-"+string(s.Metadata.UID), "snapcontent-"+string(s.Metadata.UID)
	if s.Spec.VolumeSnapshotClassName != "usual" || s.Status.Content != content || s.Status.Size != "1Gi" ||
		s.Status.Created == nil {
		t.Errorf("snapshot %+v", s)
	}
	p.waitForSnapshots(handle)
	p.eventually(func() string {
		if c := p.getClaim("data"); slices.Contains(c.Finalizers, volume.FinalizerSnapshotSource) {
			return "the claim is kept for a snapshot that is taken"
		}
		return ""
	})
	for _, reason := range []volume.Reason{
		volume.ReasonSnapshotPending, volume.ReasonSnapshotCreated, volume.ReasonSnapshotReady,
	} {
		p.waitForEvent("VolumeSnapshot", "s", reason, "napshot default/s")
	}
	p.createClaim("copy", "fast", restores)
	p.waitForBound("copy")
	if got := p.creations()[1].GetVolumeContentSource().GetSnapshot().GetSnapshotId(); got != handle {
		t.Errorf("the volume is made from snapshot %q", got)
	}
	p.deleteSnapshot("s")
	p.waitForGone("namespaces/default/volumesnapshots/s")
	p.waitForGone("volumesnapshotcontents/" + content)
	p.waitForSnapshots()
	if takes, drops := p.calls("CreateSnapshot"), p.calls("DeleteSnapshot"); takes != 1 || drops != 1 {
		t.Errorf("%d calls of CreateSnapshot, %d of DeleteSnapshot", takes, drops)
	}
}
