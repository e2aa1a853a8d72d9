package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

const groupAPI = "/apis/groupsnapshot.storage.k8s.io/v1/"

// groupContent is what these tests read of a VolumeGroupSnapshotContent.
type groupContent struct {
	Metadata metav1.ObjectMeta
	Status   struct {
		Handle  string `json:"volumeGroupSnapshotHandle"`
		Ready   bool   `json:"readyToUse"`
		Created string `json:"creationTime"`
		Members []struct {
			VolumeHandle, SnapshotHandle string
			ReadyToUse                   bool
			CreationTime, RestoreSize    int64
		} `json:"volumeSnapshotInfoList"`
		Error struct{ Message string }
	}
}

// newGroupPlane runs the group-snapshotter, and nothing else.
func newGroupPlane(t *testing.T) *plane {
	t.Helper()
	p := newPlane(t, func(c *csitest.Config) { c.Plugin.GroupController, c.Group.Snapshot = true, true })
	p.stop()
	p.tune = func(o *app.ControlPlaneOptions) { o.Roles = []string{"group-snapshotter"} }
	p.start()
	for _, name := range []string{"data", "log"} {
		_, err := p.conn.ControllerClient().CreateVolume(p.ctx, &csipb.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csipb.VolumeCapability{{
				AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
				AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			}},
		})
		p.must(err)
	}
	p.served("POST", groupAPI+"volumegroupsnapshotclasses", fmt.Sprintf(`{"apiVersion":"groupsnapshot.storage.k8s.io/v1",
		"kind":"VolumeGroupSnapshotClass","metadata":{"name":"usual"},"driver":%q,"deletionPolicy":"Delete"}`, p.conn.Name))
	return p
}

// group sends a request about a path.
func (p *plane) group(verb, path, body string) error {
	r := p.client.Discovery().RESTClient().Verb(verb).AbsPath(path)
	if verb == "PATCH" {
		r = r.SetHeader("Content-Type", "application/merge-patch+json")
	}
	return r.Body([]byte(body)).Do(p.ctx).Error()
}

// served sends a request until the kind that it is about is served.
func (p *plane) served(verb, path, body string) {
	p.t.Helper()
	p.eventually(func() string {
		if err := p.group(verb, path, body); err != nil && !apierrors.IsAlreadyExists(err) {
			return err.Error()
		}
		return ""
	})
}

// createGroupContent makes a content that is bound to a group snapshot of the default namespace.
func (p *plane) createGroupContent(name, uid, source string) {
	p.t.Helper()
	p.served("POST", groupAPI+"volumegroupsnapshotcontents", fmt.Sprintf(`{"apiVersion":"groupsnapshot.storage.k8s.io/v1",
		"kind":"VolumeGroupSnapshotContent","metadata":{"name":%q,"finalizers":[%q]},"spec":{"driver":%q,
		"deletionPolicy":"Delete","volumeGroupSnapshotClassName":"usual","source":%s,
		"volumeGroupSnapshotRef":{"namespace":"default","name":"g","uid":%q}}}`, name, volume.FinalizerGroupContentBound,
		p.conn.Name, source, uid))
}

// waitForGroup waits until a content is ready.
func (p *plane) waitForGroup(name string) (c groupContent) {
	p.t.Helper()
	p.eventually(func() string {
		body, err := p.client.Discovery().RESTClient().Get().AbsPath(groupAPI + "volumegroupsnapshotcontents/" + name).
			DoRaw(p.ctx)
		p.must(err)
		c = groupContent{}
		p.must(json.Unmarshal(body, &c))
		if !c.Status.Ready || c.Metadata.Annotations[volume.AnnGroupCreating] != "" {
			return fmt.Sprintf("content %s: %s", name, body)
		}
		return ""
	})
	return c
}

func (p *plane) waitForNoGroup(name string) {
	p.t.Helper()
	p.eventually(func() string {
		body, err := p.client.Discovery().RESTClient().Get().AbsPath(groupAPI + "volumegroupsnapshotcontents/" + name).
			DoRaw(p.ctx)
		if apierrors.IsNotFound(err) {
			return ""
		}
		return "content " + name + " is there: " + string(body)
	})
}

func (p *plane) deleteGroupContent(name string) {
	p.t.Helper()
	path := groupAPI + "volumegroupsnapshotcontents/" + name
	p.must(p.group("PATCH", path, fmt.Sprintf(`{"metadata":{"annotations":{%q:"yes"}}}`, volume.AnnGroupDeleting)))
	p.must(p.group("DELETE", path, "{}"))
}

// TestGroupSnapshot: the content of a group, as upstream's snapshot-controller creates it, has a driver create the
// group. The driver deletes the group with the last content that names it.
func TestGroupSnapshot(t *testing.T) {
	p := newGroupPlane(t)
	p.createGroupContent("c", "u", `{"volumeHandles":["id-log","id-data"]}`)
	c := p.waitForGroup("c")
	const handle = "id-groupsnapshot-u"
	if c.Status.Handle != handle || c.Status.Created != "1970-01-01T00:00:01Z" || c.Status.Error.Message != "" ||
		!slices.Contains(c.Metadata.Finalizers, volume.FinalizerGroupContentBound) {
		t.Errorf("content %+v", c)
	}
	var members []string
	for _, m := range c.Status.Members {
		members = append(members, fmt.Sprint(m.VolumeHandle, " ", m.SnapshotHandle, " ", m.ReadyToUse, " ", m.CreationTime))
	}
	want := []string{"id-data " + handle + "-id-data true 1000000000", "id-log " + handle + "-id-log true 1000000000"}
	if !slices.Equal(members, want) || !slices.Equal(p.driver.Groups(), []string{handle}) {
		t.Errorf("members %v, groups of the driver %v", members, p.driver.Groups())
	}
	p.createGroupContent("given", "v", fmt.Sprintf(`{"groupSnapshotHandles":{"volumeGroupSnapshotHandle":%q,
		"volumeSnapshotHandles":["%s-id-data","%s-id-log"]}}`, handle, handle, handle))
	p.waitForGroup("given")
	p.deleteGroupContent("c")
	p.waitForNoGroup("c")
	if !slices.Equal(p.driver.Groups(), []string{handle}) || p.calls("DeleteVolumeGroupSnapshot") != 0 {
		t.Errorf("a group that another content names: the driver has %v", p.driver.Groups())
	}
	p.deleteGroupContent("given")
	p.waitForNoGroup("given")
	if len(p.driver.Groups()) != 0 || p.calls("CreateVolumeGroupSnapshot") != 1 {
		t.Errorf("the driver has %v after %d calls", p.driver.Groups(), p.calls("CreateVolumeGroupSnapshot"))
	}
}
