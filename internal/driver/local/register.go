package local

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"volplane.dev/volplane/internal/volume"
)

// version is the driver's version; it changes when the driver's behaviour changes.
const version = "1.0.0"

// GetInfo returns the driver's name, endpoint and versions.
func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: volume.LocalDriver, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus hears how the registration ended.
func (r *registrar) NotifyRegistrationStatus(
	_ context.Context, s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		r.log.Warn("node agent refused the driver", "driver", volume.LocalDriver, "err", s.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// identity is the CSI identity service.
type identity struct {
	csipb.UnimplementedIdentityServer
}

// GetPluginInfo names the driver.
func (identity) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: volume.LocalDriver, VendorVersion: version}, nil
}

// Probe says that the driver works.
func (identity) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginCapabilities says what the driver can do as a whole.
func (identity) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	service := func(t csipb.PluginCapability_Service_Type) *csipb.PluginCapability {
		return &csipb.PluginCapability{
			Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: t}},
		}
	}
	return &csipb.GetPluginCapabilitiesResponse{Capabilities: []*csipb.PluginCapability{
		service(csipb.PluginCapability_Service_CONTROLLER_SERVICE),
		service(csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		{Type: &csipb.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &csipb.PluginCapability_VolumeExpansion{Type: csipb.PluginCapability_VolumeExpansion_ONLINE},
		}},
	}}, nil
}
