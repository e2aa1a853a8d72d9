package groupsnapshotter

import (
	"errors"
	"slices"
	"strconv"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestSteps: what the group-snapshotter does with its driver, step by step, on its own, and when it is killed.
func TestSteps(t *testing.T) {
	config := csitest.Full()
	config.Name = "d.example"
	config.Plugin.GroupController, config.Group.Snapshot = true, true
	secrets, handle := map[string]string{"key": "value"}, "id-groupsnapshot-u"
	members := []string{handle + "-id-v", handle + "-id-w"}
	story.Run(t, "testdata/steps", func(s *story.Scene) story.Cast {
		return story.Cast{
			Controller: func(env controller.Env) *controller.Controller { return New(env, s.Drivers, chosen(s.Option)) },
			Driver:     &config,
			Usual: []proto.Message{
				&csipb.CreateVolumeGroupSnapshotRequest{
					Name: "groupsnapshot-u", SourceVolumeIds: []string{"id-v", "id-w"},
					Parameters: map[string]string{"copies": "2"}, Secrets: secrets,
				},
				&csipb.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: handle, SnapshotIds: members, Secrets: secrets},
				&csipb.GetVolumeGroupSnapshotRequest{GroupSnapshotId: handle, SnapshotIds: members, Secrets: secrets},
			},
			Given: []string{"content", "fast", "secret"},
			Holds: intentFirst,
		}
	})
}

// intentFirst requires that the intent is recorded whenever the driver was called and no handle is known.
func intentFirst(api *kubetest.API, steps []string) error {
	o, err := api.Tracker().Get(groupv1.SchemeGroupVersion.WithResource(volume.ResourceGroupContents), "", "c")
	if err != nil {
		return nil //nolint:nilerr // it is deleted
	}
	c := o.(*groupv1.VolumeGroupSnapshotContent)
	if slices.Contains(steps, "CreateVolumeGroupSnapshot") &&
		(c.Status == nil || c.Status.VolumeGroupSnapshotHandle == nil) && c.Annotations[volume.AnnGroupCreating] != "yes" {
		return errors.New("nothing says that the driver was asked")
	}
	return nil
}

// chosen returns the options of a script.
func chosen(option func(string) string) snapshot.Options {
	length, _ := strconv.Atoi(option("length"))
	return snapshot.Options{
		NamePrefix: option("prefix"), NameLength: length, ExtraMetadata: option("metadata") != "", Node: option("node"),
		Topology: option("topology") != "",
	}
}
