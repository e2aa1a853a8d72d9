package local

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/volume"
)

// version is the driver's version; it changes when the driver's behaviour changes.
const version = "1.0.0"

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
	return csi.PluginCapabilities{
		ControllerService: true, GroupController: true, AccessibilityConstraints: true,
		SnapshotAccessibilityConstraints: true, OnlineExpansion: true,
	}.Answer(), nil
}
