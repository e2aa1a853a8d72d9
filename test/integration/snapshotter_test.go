package integration

import (
	"fmt"
	"slices"
	"strings"
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

// TestRetainedSnapshot: a content that is to be retained survives its snapshot, at the driver too. It can be restored
// from when an administrator creates objects for it again.
func TestRetainedSnapshot(t *testing.T) {
	p := newPlane(t, takesSnapshots)
	p.createSnapshotClass("kept", "Retain", false)
	p.createBoundVolume("data")
	p.createSnapshot("s", "data", "kept")
	s := p.waitForReady("s")
	handle, content := "id-snapshot-"+string(s.Metadata.UID), s.Status.Content
	p.deleteSnapshot("s")
	p.waitForGone("namespaces/default/volumesnapshots/s")
	p.custom("DELETE", "volumesnapshotcontents/"+content, "{}")
	p.waitForGone("volumesnapshotcontents/" + content)
	p.waitForSnapshots(handle)
	p.custom("POST", "volumesnapshotcontents", fmt.Sprintf(`{"apiVersion":"snapshot.storage.k8s.io/v1",
		"kind":"VolumeSnapshotContent","metadata":{"name":"again"},"spec":{"driver":%q,"deletionPolicy":"Delete",
		"sourceVolumeMode":"Filesystem","source":{"snapshotHandle":%q},
		"volumeSnapshotRef":{"namespace":"default","name":"again"}}}`, p.conn.Name, handle))
	p.custom("POST", "namespaces/default/volumesnapshots", `{"apiVersion":"snapshot.storage.k8s.io/v1",
		"kind":"VolumeSnapshot","metadata":{"name":"again"},"spec":{"source":{"volumeSnapshotContentName":"again"}}}`)
	if s := p.waitForReady("again"); s.Status.Size != "1Gi" {
		t.Errorf("snapshot %+v", s)
	}
	p.deleteSnapshot("again")
	p.waitForGone("volumesnapshotcontents/again")
	p.waitForSnapshots()
}

// TestSnapshotThatIsDeletedEarly: a snapshot that is deleted while the driver takes it is not left there, whichever
// process does it.
func TestSnapshotThatIsDeletedEarly(t *testing.T) {
	p := newPlane(t, takesSnapshots)
	p.createSnapshotClass("usual", "Delete", true)
	p.createBoundVolume("data")
	called, open := p.gate("CreateSnapshot", true, nil)
	p.createSnapshot("s", "data", "")
	<-called
	content := "snapcontent-" + string(p.snapshot("s").Metadata.UID)
	p.deleteSnapshot("s")
	p.eventually(func() string {
		var c struct {
			Metadata struct{ Annotations map[string]string }
		}
		p.read("volumesnapshotcontents/"+content, &c)
		if c.Metadata.Annotations[volume.AnnSnapshotDeleting] == "" {
			return "the content is not told"
		}
		return ""
	})
	p.stop()
	open()
	p.start()
	p.waitForGone("namespaces/default/volumesnapshots/s")
	p.waitForSnapshots()
}

// TestSnapshotsThatCannotBe: what is wrong is said in an event and in the status.
func TestSnapshotsThatCannotBe(t *testing.T) {
	p := newPlane(t)
	p.createSnapshotClass("usual", "Delete", true)
	p.createBoundVolume("data")
	p.createSnapshot("able", "data", "")
	p.createSnapshot("classless", "data", "none")
	p.createSnapshot("claimless", "none", "usual")
	for name, want := range map[string]string{
		"able": "CREATE_DELETE_SNAPSHOT", "classless": "VolumeSnapshotClass none", "claimless": "claim none does not exist",
	} {
		p.eventually(func() string {
			if s := p.snapshot(name); !strings.Contains(s.Status.Error.Message, want) {
				return fmt.Sprintf("snapshot %s: %+v", name, s.Status)
			}
			return ""
		})
	}
	p.waitForEvent("VolumeSnapshot", "claimless", volume.ReasonContentFailed)
	p.waitForEvent("VolumeSnapshot", "classless", volume.ReasonSnapshotClassFailed)
	for _, name := range []string{"able", "classless", "claimless"} {
		p.deleteSnapshot(name)
		p.waitForGone("namespaces/default/volumesnapshots/" + name)
	}
}
