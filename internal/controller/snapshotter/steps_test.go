package snapshotter

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/drivertest"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestSteps: what the snapshotter does with its driver, step by step, and by itself.
func TestSteps(t *testing.T) { drivertest.Run(t, setting()) }

// TestKilledWhileTaking: whenever a snapshotter is killed, before or after a write or call, the next one ends where
// this one would have ended, and the driver is never asked before the intent is written.
func TestKilledWhileTaking(t *testing.T) {
	drivertest.Killed(t, setting(), "testdata/killed/take.txt", "driver made vol\nlook content/c", intentFirst)
}

// TestKilledWhileDeleting: neither is a snapshot left that the driver may have taken, nor one that it has to delete.
func TestKilledWhileDeleting(t *testing.T) {
	drivertest.Killed(t, setting(), "testdata/killed/delete.txt",
		"driver made vol\ncontent intended going deleted\nlook content/c", intentFirst)
}

// intentFirst wants the intent to be there whenever the driver has been asked and no handle is known.
func intentFirst(t testing.TB, api *kubetest.API, steps []string) {
	t.Helper()
	o, err := api.Tracker().Get(snapshotv1.SchemeGroupVersion.WithResource(volume.ResourceSnapshotContents), "", "c")
	if err != nil {
		return
	}
	c := o.(*cluster.VolumeSnapshotContent)
	if slices.Contains(steps, "CreateSnapshot") && (c.Status == nil || c.Status.SnapshotHandle == nil) &&
		c.Annotations[volume.AnnSnapshotCreating] != "yes" {
		t.Errorf("after %s nobody knows that the driver was asked", strings.Join(steps, ", "))
	}
}

func setting() drivertest.Setting {
	config := csitest.Full()
	config.Name, config.Snapshots = driverName, []string{"shot"}
	config.Controller.Snapshot, config.Controller.ListSnapshots, config.Controller.GetSnapshot = true, true, true
	config.Plugin.SnapshotAccessibilityConstraints = true
	return drivertest.Setting{
		Driver: config,
		Build: func(env controller.Env, drivers *csi.Set, option func(string) string) *controller.Controller {
			return New(env, drivers, chosen(option))
		},
		Usual: []proto.Message{
			request(), &csipb.DeleteSnapshotRequest{SnapshotId: handle, Secrets: map[string]string{"key": "value"}},
		},
		Given: []string{"content", "class", "secret"},
		Kinds: map[string]drivertest.Kind{
			"content": drivertest.Object(content, contentStates(),
				map[string]func(*cluster.VolumeSnapshotContent, string){
					"name": func(c *cluster.VolumeSnapshotContent, name string) { c.Name = name },
					"handle": func(c *cluster.VolumeSnapshotContent, handle string) {
						c.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: ptr.To(handle)}
					},
					"uid": func(c *cluster.VolumeSnapshotContent, uid string) {
						c.UID, c.Spec.VolumeSnapshotRef.UID = types.UID(uid), types.UID(uid)
					},
					"of": func(c *cluster.VolumeSnapshotContent, node string) {
						c.Labels = map[string]string{volume.LabelSnapshotsOf: node}
					},
					"node": func(c *cluster.VolumeSnapshotContent, node string) { c.Annotations[volume.AnnProvisionedOn] = node },
				}),
			"class":  drivertest.Object(class, classStates(), nil),
			"secret": drivertest.Object(secret, nil, nil),
		},
	}
}

// chosen returns the options of a script.
func chosen(option func(string) string) snapshot.Options {
	length, _ := strconv.Atoi(option("length"))
	return snapshot.Options{
		NamePrefix: option("prefix"), NameLength: length, ExtraMetadata: option("metadata") != "", Node: option("node"),
		Topology: option("topology") != "",
	}
}
