package bridge

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/volume"
)

// unknownVersion is the version of a driver that is not ready.
const unknownVersion = "none"

// Object returns the CSIDriver object that a driver needs.
func Object(s Served) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name, Labels: map[string]string{volume.LabelMadeBy: volume.Program},
			Annotations: map[string]string{volume.AnnFlexDriver: s.Flex},
		},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: ptr.To(s.Attach),
			// The driver gets the Pod's name with each mount (F-008), and inline volumes are
			// recognized.
			PodInfoOnMount: ptr.To(true),
			// The fsGroup is passed to the driver, and the bridge changes the files.
			FSGroupPolicy: ptr.To(storagev1.FileFSGroupPolicy),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{
				storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral,
			},
		},
	}
}

// GetPluginInfo returns the driver's name; its version is the hash of its executable.
func (d *driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	version := unknownVersion
	if now, err := d.kept(); err == nil {
		version = now.Hash
	}
	return &csipb.GetPluginInfoResponse{Name: d.csi, VendorVersion: version}, nil
}

// Probe says whether the driver is ready. It also says so for a driver that has volumes to unmount:
// callers do not call a driver that is not ready.
func (d *driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	_, err := d.ready()
	if err != nil && len(d.b.records.list(d.name, func(r *record) bool { return r.Kind != made })) == 0 {
		return nil, err
	}
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginCapabilities returns the capabilities of the identity service. The controller service of a driver that
// neither attaches nor makes volumes says so itself: volumes that an earlier version has attached are detached then.
func (d *driver) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	return csi.PluginCapabilities{ControllerService: true, OnlineExpansion: d.expand}.Answer(), nil
}
