package attacher

import (
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/drivertest"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestSteps: what the attacher does step by step, and by itself.
func TestSteps(t *testing.T) { drivertest.Run(t, setting()) }

// TestKilledBetweenAnyTwoSteps: whenever an attacher is killed, what it leaves can be detached, and the next one ends
// where this one would have ended. Only a call whose outcome was not recorded is made again.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	drivertest.Killed(t, setting(), "testdata/killed.txt", `
pv; va
look attachment/va
delete volumeattachments va
restart
look attachment/va
drop volumeattachments va
delete persistentvolumes pv
restart
look volume/pv`, canBeDetached)
}

// canBeDetached: while the driver has a volume attached, the attachment says how to detach it, and neither the
// attachment nor the volume can go.
func canBeDetached(t testing.TB, api *kubetest.API, steps []string) {
	t.Helper()
	attached := false
	for _, step := range steps {
		attached = step == "ControllerPublishVolume" || attached && step != "ControllerUnpublishVolume"
	}
	if !attached {
		return
	}
	a, err := api.Tracker().Get(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), "", "va")
	if err != nil {
		t.Fatal(err)
	}
	v, err := api.Tracker().Get(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", "pv")
	if err != nil {
		t.Fatal(err)
	}
	got := a.(*storagev1.VolumeAttachment)
	if !slices.Contains(got.Finalizers, ours) || !maps.Equal(got.Annotations, va(recorded).Annotations) ||
		!slices.Contains(v.(*corev1.PersistentVolume).Finalizers, ours) {
		t.Errorf("attached, and not kept: %+v of %+v", got, v)
	}
}

func setting() drivertest.Setting {
	config := csitest.Full()
	config.Name = driverName
	return drivertest.Setting{
		Driver: config,
		Build: func(env controller.Env, drivers *csi.Set, option func(string) string) *controller.Controller {
			sync, _ := time.ParseDuration(option("sync"))
			var entries *int32
			if n, err := strconv.ParseInt(option("entries"), 10, 32); err == nil {
				entries = ptr.To(int32(n))
			}
			return New(env, Options{
				Drivers: drivers, ReconcileSync: sync, Dummy: option("dummy"), MaxEntries: entries,
				DefaultFSType: option("fstype"),
			})
		},
		Usual: []proto.Message{publishRequest(), unpublishRequest(), &csipb.ListVolumesRequest{MaxEntries: pageSize}},
		Answers: map[string]proto.Message{
			"ControllerPublishVolume": &csipb.ControllerPublishVolumeResponse{
				PublishContext: map[string]string{"device": "/dev/x"},
			},
			"ControllerUnpublishVolume": &csipb.ControllerUnpublishVolumeResponse{},
		},
		Given: []string{"csinode", "secret"},
		Kinds: map[string]drivertest.Kind{
			"pv": drivertest.Object(func() *corev1.PersistentVolume { return pv() },
				map[string]func(*corev1.PersistentVolume){
					"kept": kept, "dying": dying, "readonly": func(v *corev1.PersistentVolume) { v.Spec.CSI.ReadOnly = true },
					"mixed": func(v *corev1.PersistentVolume) {
						v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadOnlyMany)
					},
					"other":   func(v *corev1.PersistentVolume) { v.Name, v.UID, v.Spec.CSI.VolumeHandle = "pv-2", "pv-2", "h2" },
					"untyped": func(v *corev1.PersistentVolume) { v.Spec.CSI.FSType = "" },
					"none":    func(v *corev1.PersistentVolume) { v.Spec.CSI = nil },
				}, volumeFields()),
			"va": drivertest.Object(func() *storagev1.VolumeAttachment { return va() },
				map[string]func(*storagev1.VolumeAttachment){
					"recorded": recorded, "attached": attached, "going": going, "inline": inline,
					"ours": func(a *storagev1.VolumeAttachment) { a.Finalizers = append(a.Finalizers, ours) },
				}, attachmentFields()),
			"secret": drivertest.Object(secret, nil, nil),
			"csinode": drivertest.Object(csiNode, nil, map[string]func(*storagev1.CSINode, string){
				"name": func(n *storagev1.CSINode, name string) { n.Name = name },
			}),
			"node": drivertest.Object(node, map[string]func(*corev1.Node){"using": func(n *corev1.Node) {
				n.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName(driverName, "h"))}
			}, "ready": func(n *corev1.Node) {
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			}}, nil),
			"csidriver": drivertest.Object(csiDriver, nil, map[string]func(*storagev1.CSIDriver, string){
				"attach": func(d *storagev1.CSIDriver, is string) { d.Spec.AttachRequired = ptr.To(is == "true") },
			}),
		},
	}
}

func csiDriver() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}}
}

func volumeFields() map[string]func(*corev1.PersistentVolume, string) {
	return map[string]func(*corev1.PersistentVolume, string){
		"name":   func(v *corev1.PersistentVolume, name string) { v.Name, v.UID = name, types.UID(name) },
		"handle": func(v *corev1.PersistentVolume, handle string) { v.Spec.CSI.VolumeHandle = handle },
		"driver": func(v *corev1.PersistentVolume, driver string) { v.Spec.CSI.Driver = driver },
		"mode": func(v *corev1.PersistentVolume, mode string) {
			v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeMode(mode))
		},
		"finalizer": func(v *corev1.PersistentVolume, name string) { v.Finalizers = append(v.Finalizers, name) },
	}
}

func attachmentFields() map[string]func(*storagev1.VolumeAttachment, string) {
	return map[string]func(*storagev1.VolumeAttachment, string){
		"name":     func(a *storagev1.VolumeAttachment, name string) { a.Name, a.UID = name, types.UID(name) },
		"uid":      func(a *storagev1.VolumeAttachment, uid string) { a.UID = types.UID(uid) },
		"attacher": func(a *storagev1.VolumeAttachment, name string) { a.Spec.Attacher = name },
		"node":     func(a *storagev1.VolumeAttachment, name string) { a.Spec.NodeName = name },
		"volume":   func(a *storagev1.VolumeAttachment, name string) { a.Spec.Source.PersistentVolumeName = &name },
		"nodeid":   func(a *storagev1.VolumeAttachment, id string) { annotate(a, volume.AnnNodeID, id) },
		"detach":   func(a *storagev1.VolumeAttachment, record string) { annotate(a, volume.AnnDetach, record) },
		"device":   func(a *storagev1.VolumeAttachment, path string) { a.Status.AttachmentMetadata["device"] = path },
		"error": func(a *storagev1.VolumeAttachment, message string) {
			a.Status.AttachError = &storagev1.VolumeError{Message: message}
		},
	}
}

// annotate sets an annotation, or removes it if the value is empty.
func annotate(a *storagev1.VolumeAttachment, name, value string) {
	if a.Annotations[name] = value; value == "" {
		delete(a.Annotations, name)
	}
}
