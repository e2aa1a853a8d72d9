package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const driverName = "bench.csi.example.com"

// driver is a CSI driver that does nothing, within a given time.
type driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer

	socket           string
	delay            time.Duration
	created, deleted atomic.Int64
	// attached, detached, snapped and unsnapped count calls, too.
	attached, detached, snapped, unsnapped atomic.Int64
}

// serveDriver serves a driver until stop is called.
func serveDriver(delay time.Duration) (d *driver, stop func(), err error) {
	dir, err := os.MkdirTemp("", "csi-")
	if err != nil {
		return nil, nil, err
	}
	d = &driver{socket: filepath.Join(dir, "csi.sock"), delay: delay}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		return nil, nil, err
	}
	s := grpc.NewServer()
	csipb.RegisterIdentityServer(s, d)
	csipb.RegisterControllerServer(s, d)
	go func() { _ = s.Serve(l) }()
	return d, func() { s.Stop(); _ = os.RemoveAll(dir) }, nil
}

func (d *driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: driverName, VendorVersion: "1"}, nil
}

func (d *driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	service := &csipb.PluginCapability_Service{Type: csipb.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csipb.GetPluginCapabilitiesResponse{
		Capabilities: []*csipb.PluginCapability{{Type: &csipb.PluginCapability_Service_{Service: service}}},
	}, nil
}

func (d *driver) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	out := &csipb.ControllerGetCapabilitiesResponse{}
	for _, able := range []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		// csi-resizer exits without this capability.
		csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	} {
		rpc := &csipb.ControllerServiceCapability_RPC{Type: able}
		out.Capabilities = append(out.Capabilities,
			&csipb.ControllerServiceCapability{Type: &csipb.ControllerServiceCapability_Rpc{Rpc: rpc}})
	}
	return out, nil
}

func (d *driver) ControllerPublishVolume(
	context.Context, *csipb.ControllerPublishVolumeRequest,
) (*csipb.ControllerPublishVolumeResponse, error) {
	d.attached.Add(1)
	time.Sleep(d.delay)
	return &csipb.ControllerPublishVolumeResponse{}, nil
}

func (d *driver) ControllerUnpublishVolume(
	context.Context, *csipb.ControllerUnpublishVolumeRequest,
) (*csipb.ControllerUnpublishVolumeResponse, error) {
	d.detached.Add(1)
	time.Sleep(d.delay)
	return &csipb.ControllerUnpublishVolumeResponse{}, nil
}

func (d *driver) CreateVolume(_ context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	d.created.Add(1)
	time.Sleep(d.delay)
	return &csipb.CreateVolumeResponse{
		Volume: &csipb.Volume{VolumeId: "id-" + r.GetName(), CapacityBytes: r.GetCapacityRange().GetRequiredBytes()},
	}, nil
}

func (d *driver) DeleteVolume(context.Context, *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	d.deleted.Add(1)
	time.Sleep(d.delay)
	return &csipb.DeleteVolumeResponse{}, nil
}

func (d *driver) CreateSnapshot(
	_ context.Context, r *csipb.CreateSnapshotRequest,
) (*csipb.CreateSnapshotResponse, error) {
	d.snapped.Add(1)
	time.Sleep(d.delay)
	return &csipb.CreateSnapshotResponse{Snapshot: &csipb.Snapshot{
		SnapshotId: "id-" + r.GetName(), SourceVolumeId: r.GetSourceVolumeId(), SizeBytes: 1 << 30, ReadyToUse: true,
		CreationTime: timestamppb.Now(),
	}}, nil
}

func (d *driver) DeleteSnapshot(
	context.Context, *csipb.DeleteSnapshotRequest,
) (*csipb.DeleteSnapshotResponse, error) {
	d.unsnapped.Add(1)
	time.Sleep(d.delay)
	return &csipb.DeleteSnapshotResponse{}, nil
}
