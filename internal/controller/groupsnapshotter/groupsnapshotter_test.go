package groupsnapshotter

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

const (
	driverName = "d.example"
	foreign    = "example.org/foreign"
	handle     = "id-groupsnapshot-u"
)

// TestSteps: what the group-snapshotter does with its driver, step by step, and by itself.
func TestSteps(t *testing.T) { drivertest.Run(t, setting()) }

// TestKilledWhileTaking: whenever a group-snapshotter is killed, before or after a write or call, the next one ends
// where this one would have ended, and the driver is never asked before the intent is written.
func TestKilledWhileTaking(t *testing.T) {
	drivertest.Killed(t, setting(), "testdata/killed/take.txt", "driver made v\ndriver made w\nlook groupcontent/c",
		intentFirst)
}

// TestKilledWhileDeleting: neither is a group left that the driver may have taken, nor one that it has to delete.
func TestKilledWhileDeleting(t *testing.T) {
	drivertest.Killed(t, setting(), "testdata/killed/delete.txt",
		"driver made v\ndriver made w\ncontent intended going deleted\nlook groupcontent/c", intentFirst)
}

// intentFirst wants the intent to be there whenever the driver has been asked and no handle is known.
func intentFirst(t testing.TB, api *kubetest.API, steps []string) {
	t.Helper()
	o, err := api.Tracker().Get(groupv1.SchemeGroupVersion.WithResource(volume.ResourceGroupContents), "", "c")
	if err != nil {
		return
	}
	c := o.(*groupv1.VolumeGroupSnapshotContent)
	if slices.Contains(steps, "CreateVolumeGroupSnapshot") &&
		(c.Status == nil || c.Status.VolumeGroupSnapshotHandle == nil) && c.Annotations[volume.AnnGroupCreating] != "yes" {
		t.Errorf("after %s nobody knows that the driver was asked", strings.Join(steps, ", "))
	}
}

func setting() drivertest.Setting {
	config := csitest.Full()
	config.Name = driverName
	config.Plugin.GroupController, config.Group.Snapshot = true, true
	secrets := map[string]string{"key": "value"}
	return drivertest.Setting{
		Driver: config,
		Build: func(env controller.Env, drivers *csi.Set, option func(string) string) *controller.Controller {
			return New(env, drivers, chosen(option))
		},
		Usual: []proto.Message{
			&csipb.CreateVolumeGroupSnapshotRequest{
				Name: "groupsnapshot-u", SourceVolumeIds: []string{"id-v", "id-w"}, Parameters: map[string]string{"copies": "2"},
				Secrets: secrets,
			},
			&csipb.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: handle, SnapshotIds: members(), Secrets: secrets},
			&csipb.GetVolumeGroupSnapshotRequest{GroupSnapshotId: handle, SnapshotIds: members(), Secrets: secrets},
		},
		Given: []string{"content", "class", "secret"},
		Kinds: map[string]drivertest.Kind{
			"content": drivertest.Object(content, states(), map[string]func(*groupv1.VolumeGroupSnapshotContent, string){
				"name": func(c *groupv1.VolumeGroupSnapshotContent, name string) { c.Name = name },
				"uid": func(c *groupv1.VolumeGroupSnapshotContent, uid string) {
					c.UID, c.Spec.VolumeGroupSnapshotRef.UID = types.UID(uid), types.UID(uid)
				},
			}),
			"single": drivertest.Object(single, nil, map[string]func(*cluster.VolumeSnapshotContent, string){
				"of": func(c *cluster.VolumeSnapshotContent, group string) {
					c.Annotations = map[string]string{volume.AnnGroupSnapshotHandle: group}
				},
			}),
			"class": drivertest.Object(func() *groupv1.VolumeGroupSnapshotClass {
				return &groupv1.VolumeGroupSnapshotClass{
					ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: driverName, Parameters: map[string]string{
						"copies": "2", "csi.storage.k8s.io/group-snapshotter-get-secret-name": "key",
						"csi.storage.k8s.io/group-snapshotter-get-secret-namespace": "ns",
					},
				}
			}, nil, nil),
			"secret": drivertest.Object(func() *corev1.Secret {
				return &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "key"}, Data: map[string][]byte{"key": []byte("value")},
				}
			}, nil, nil),
		},
	}
}

func members() []string { return []string{handle + "-id-v", handle + "-id-w"} }

// content is the content of a group snapshot of the volumes id-v and id-w.
func content() *groupv1.VolumeGroupSnapshotContent {
	return &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: "c", UID: "c", Finalizers: []string{foreign, volume.FinalizerGroupContentBound},
			Annotations: map[string]string{
				volume.AnnSnapshotParameters: `{"copies":"2"}`, volume.AnnGroupSecretName: "key",
				volume.AnnGroupSecretNamespace: "ns",
			},
		},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			VolumeGroupSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "g", UID: "u"}, Driver: driverName,
			DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeGroupSnapshotClassName: ptr.To("fast"),
			Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"id-v", "id-w"}},
		},
	}
}

// single is the content of a snapshot that is in the group.
func single() *cluster.VolumeSnapshotContent {
	c := &cluster.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "single"}}
	c.Spec.Driver, c.Spec.Source.SnapshotHandle = driverName, ptr.To(members()[0])
	return c
}

type state = map[string]func(*groupv1.VolumeGroupSnapshotContent)

func states() state {
	taken := func(ready bool) func(c *groupv1.VolumeGroupSnapshotContent) {
		return func(c *groupv1.VolumeGroupSnapshotContent) {
			c.Status = &groupv1.VolumeGroupSnapshotContentStatus{
				VolumeGroupSnapshotHandle: ptr.To(handle), ReadyToUse: &ready, CreationTime: ptr.To(metav1.Unix(1, 0)),
			}
			for i, member := range members() {
				c.Status.VolumeSnapshotInfoList = append(c.Status.VolumeSnapshotInfoList, groupv1.VolumeSnapshotInfo{
					VolumeHandle: c.Spec.Source.VolumeHandles[i], SnapshotHandle: member, CreationTime: ptr.To[int64](1e9),
					ReadyToUse: ptr.To(true), RestoreSize: ptr.To[int64](1 << 30),
				})
			}
		}
	}
	return state{
		"intended": func(c *groupv1.VolumeGroupSnapshotContent) { c.Annotations[volume.AnnGroupCreating] = "yes" },
		"going":    func(c *groupv1.VolumeGroupSnapshotContent) { c.Annotations[volume.AnnGroupDeleting] = "yes" },
		"deleted":  func(c *groupv1.VolumeGroupSnapshotContent) { c.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) },
		"taken":    taken(true),
		"pending":  taken(false),
		"retained": func(c *groupv1.VolumeGroupSnapshotContent) {
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		},
		"unbound": func(c *groupv1.VolumeGroupSnapshotContent) { c.Spec.VolumeGroupSnapshotRef.UID = "" },
		"loose":   func(c *groupv1.VolumeGroupSnapshotContent) { c.Finalizers = []string{foreign} },
		"bare":    func(c *groupv1.VolumeGroupSnapshotContent) { c.Annotations = nil },
		"given": func(c *groupv1.VolumeGroupSnapshotContent) {
			c.Spec.Source = groupv1.VolumeGroupSnapshotContentSource{GroupSnapshotHandles: &groupv1.GroupSnapshotHandles{
				VolumeGroupSnapshotHandle: handle, VolumeSnapshotHandles: members(),
			}}
		},
	}
}

// chosen returns the options of a script.
func chosen(option func(string) string) snapshot.Options {
	length, _ := strconv.Atoi(option("length"))
	return snapshot.Options{
		NamePrefix: option("prefix"), NameLength: length, ExtraMetadata: option("metadata") != "", Node: option("node"),
	}
}
