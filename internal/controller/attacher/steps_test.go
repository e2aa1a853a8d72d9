package attacher

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// TestSteps: what the attacher does step by step, on its own, and when it is killed.
func TestSteps(t *testing.T) {
	config := csitest.Full()
	config.Name = driverName
	record := va(t, "recorded").Annotations
	story.Run(t, "testdata/steps", func(s *story.Scene) story.Cast {
		return story.Cast{
			Controller: func(env controller.Env) *controller.Controller {
				sync, _ := time.ParseDuration(s.Option("sync"))
				var entries *int32
				if n, err := strconv.ParseInt(s.Option("entries"), 10, 32); err == nil {
					entries = ptr.To(int32(n))
				}
				return New(env, Options{
					Drivers: s.Drivers, ReconcileSync: sync, Dummy: s.Option("dummy"), MaxEntries: entries,
					DefaultFSType: s.Option("fstype"),
				})
			},
			Driver: &config,
			Usual:  []proto.Message{publishRequest(), unpublishRequest(), &csipb.ListVolumesRequest{MaxEntries: pageSize}},
			Answers: map[string]proto.Message{
				"ControllerPublishVolume": &csipb.ControllerPublishVolumeResponse{
					PublishContext: map[string]string{"device": "/dev/x"},
				},
				"ControllerUnpublishVolume": &csipb.ControllerUnpublishVolumeResponse{},
			},
			Given: []string{"csinode", "secret"},
			Holds: func(api *kubetest.API, steps []string) error { return canBeDetached(api, steps, record) },
		}
	})
}

// canBeDetached: while the driver has a volume attached, the attachment says how to detach it, and neither the
// attachment nor the volume can disappear.
func canBeDetached(api *kubetest.API, steps []string, record map[string]string) error {
	attached := false
	for _, step := range steps {
		attached = step == "ControllerPublishVolume" || attached && step != "ControllerUnpublishVolume"
	}
	if !attached {
		return nil
	}
	a, err := api.Tracker().Get(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), "", "va")
	if err != nil {
		return err
	}
	v, err := api.Tracker().Get(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", "pv")
	if err != nil {
		return err
	}
	got := a.(*storagev1.VolumeAttachment)
	if !slices.Contains(got.Finalizers, ours) || !maps.Equal(got.Annotations, record) ||
		!slices.Contains(v.(*corev1.PersistentVolume).Finalizers, ours) {
		return fmt.Errorf("attached, and not kept: %+v of %+v", got, v)
	}
	return nil
}
