package csitest

import (
	"context"
	"errors"
	"io/fs"
	"os"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// NodeGetInfo returns the configured node.
func (d *Driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	r := &csipb.NodeGetInfoResponse{NodeId: d.config.NodeID, MaxVolumesPerNode: d.config.MaxVolumes}
	if d.config.Plugin.AccessibilityConstraints {
		r.AccessibleTopology = &csipb.Topology{Segments: d.config.Segments}
	}
	return r, nil
}

// NodeStageVolume stores the staging path; the caller has created the directory.
func (d *Driver) NodeStageVolume(
	_ context.Context, r *csipb.NodeStageVolumeRequest,
) (*csipb.NodeStageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if before := v.staged; before != nil {
		if before.GetStagingTargetPath() != r.GetStagingTargetPath() ||
			!proto.Equal(before.GetVolumeCapability(), r.GetVolumeCapability()) {
			return nil, status.Error(codes.AlreadyExists, "the volume is staged in another way")
		}
		return &csipb.NodeStageVolumeResponse{}, nil
	}
	if err := d.attachedHere(v); err != nil {
		return nil, err
	}
	if err := d.onHost("NodeStageVolume", r, func() error { return nil }); err != nil {
		return nil, err
	}
	v.staged = r
	return &csipb.NodeStageVolumeResponse{}, nil
}

func (d *Driver) attachedHere(v *vol) error {
	if d.config.Controller.PublishUnpublish && v.attached[d.config.NodeID] == nil {
		return status.Error(codes.FailedPrecondition, "the volume is not published to this node")
	}
	return nil
}

// onHost calls the method's hook or, if there is none, otherwise.
func (d *Driver) onHost(method string, req any, otherwise func() error) error {
	f := d.config.Hooks[method]
	if f == nil {
		f = func(any) error { return otherwise() }
	}
	err := f(req)
	if _, ok := status.FromError(err); err != nil && !ok {
		return status.Error(codes.Internal, err.Error())
	}
	return err
}

// NodeUnstageVolume removes the staging path. It fails while the volume is published: a caller must
// not do that.
func (d *Driver) NodeUnstageVolume(
	_ context.Context, r *csipb.NodeUnstageVolumeRequest,
) (*csipb.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.volumes[r.GetVolumeId()]
	if v == nil || v.staged == nil {
		return &csipb.NodeUnstageVolumeResponse{}, nil
	}
	if len(v.published) > 0 {
		return nil, status.Error(codes.FailedPrecondition, "the volume is published")
	}
	if err := d.onHost("NodeUnstageVolume", r, func() error { return nil }); err != nil {
		return nil, err
	}
	v.staged = nil
	return &csipb.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume creates the target: a directory, or a file for a block volume.
func (d *Driver) NodePublishVolume(
	_ context.Context, r *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if before := v.published[r.GetTargetPath()]; before != nil {
		if before.GetReadonly() != r.GetReadonly() || !proto.Equal(before.GetVolumeCapability(), r.GetVolumeCapability()) {
			return nil, status.Error(codes.AlreadyExists, "the volume is published there in another way")
		}
		return &csipb.NodePublishVolumeResponse{}, nil
	}
	if err := d.mayPublish(v, r); err != nil {
		return nil, err
	}
	if err := d.onHost("NodePublishVolume", r, func() error { return makeTarget(r) }); err != nil {
		return nil, err
	}
	v.published[r.GetTargetPath()] = r
	return &csipb.NodePublishVolumeResponse{}, nil
}

func (d *Driver) mayPublish(v *vol, r *csipb.NodePublishVolumeRequest) error {
	if err := d.attachedHere(v); err != nil {
		return err
	}
	if d.config.Node.StageUnstage && (v.staged == nil || v.staged.GetStagingTargetPath() != r.GetStagingTargetPath()) {
		return status.Error(codes.FailedPrecondition, "the volume is not staged there")
	}
	switch r.GetVolumeCapability().GetAccessMode().GetMode() {
	case csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		if len(v.published) > 0 {
			return status.Error(codes.FailedPrecondition, "the volume is published at another path")
		}
	}
	return nil
}

func makeTarget(r *csipb.NodePublishVolumeRequest) error {
	if r.GetVolumeCapability().GetBlock() == nil {
		return os.MkdirAll(r.GetTargetPath(), 0o750)
	}
	f, err := os.OpenFile(r.GetTargetPath(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// NodeUnpublishVolume removes the target.
func (d *Driver) NodeUnpublishVolume(
	_ context.Context, r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.volumes[r.GetVolumeId()]
	if v == nil || v.published[r.GetTargetPath()] == nil {
		return &csipb.NodeUnpublishVolumeResponse{}, nil
	}
	err := d.onHost("NodeUnpublishVolume", r, func() error {
		// Only the directory itself is removed: its content belongs to another program.
		if err := os.Remove(r.GetTargetPath()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	delete(v.published, r.GetTargetPath())
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

// findAt returns a volume that is staged or published at a path; d.mu is held.
func (d *Driver) findAt(id, path string) (*vol, error) {
	if path == "" {
		return nil, invalid("no path")
	}
	v, err := d.find(id)
	if err != nil {
		return nil, err
	}
	if v.published[path] == nil && v.staged.GetStagingTargetPath() != path {
		return nil, status.Error(codes.NotFound, "the volume is not there")
	}
	return v, nil
}

// NodeGetVolumeStats returns the volume's size and a usage of 0.
func (d *Driver) NodeGetVolumeStats(
	_ context.Context, r *csipb.NodeGetVolumeStatsRequest,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.findAt(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	return &csipb.NodeGetVolumeStatsResponse{
		Usage: []*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: v.bytes, Available: v.bytes}},
	}, nil
}

// NodeExpandVolume succeeds if the volume was expanded; there is no filesystem to grow.
func (d *Driver) NodeExpandVolume(
	_ context.Context, r *csipb.NodeExpandVolumeRequest,
) (*csipb.NodeExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.findAt(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if r.GetCapacityRange().GetRequiredBytes() > v.bytes {
		return nil, status.Error(codes.OutOfRange, "the volume is smaller")
	}
	if err := d.onHost("NodeExpandVolume", r, func() error { return nil }); err != nil {
		return nil, err
	}
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: v.bytes}, nil
}
