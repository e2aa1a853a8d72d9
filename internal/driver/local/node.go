package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/mount"
)

// node is the CSI node service.
type node struct {
	csipb.UnimplementedNodeServer
	pool *pool
	id   string
}

// thawAll lets filesystems go that a killed driver has left frozen.
func thawAll(p *pool) error {
	points, err := mount.Below("/")
	if err != nil {
		return err
	}
	all, err := p.list(volumes)
	if err != nil {
		return err
	}
	for _, v := range all {
		device, err := mount.LoopFind(p.image(volumes, v.ID))
		if err != nil || device == "" {
			continue
		}
		for _, at := range points {
			if at.Source == device {
				mount.Thaw(at.Path)
			}
		}
	}
	return nil
}

// NodeStageVolume makes the volume's device appear and mounts its filesystem,
// made first if the device is blank.
func (n *node) NodeStageVolume(ctx context.Context, r *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetStagingTargetPath() == "" || r.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "no volume id, staging path or capability")
	}
	fsType, err := checkCapabilities([]*csipb.VolumeCapability{r.GetVolumeCapability()})
	if err != nil {
		return nil, err
	}
	v, err := n.mine(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	device, err := mount.LoopAttach(n.pool.image(volumes, v.ID), false)
	if err != nil {
		return nil, failure(err)
	}
	if fsType == "" {
		return &csipb.NodeStageVolumeResponse{}, nil
	}
	if err := n.stageFilesystem(ctx, v, device, fsType, r); err != nil {
		return nil, failure(errors.Join(err, n.giveBack(v.ID, device)))
	}
	return &csipb.NodeStageVolumeResponse{}, nil
}

func (n *node) stageFilesystem(ctx context.Context, v record, device, fsType string, r *csipb.NodeStageVolumeRequest) error {
	target := r.GetStagingTargetPath()
	if at, mounted, err := mount.At(target); err != nil || mounted && at.Source == device {
		return err
	}
	if err := mount.Format(ctx, device, fsType); err != nil {
		return err
	}
	if err := mount.GrowUnmounted(ctx, device, fsType); err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return fmt.Errorf("stage %s: %w", v.ID, err)
	}
	if err := mount.Device(ctx, device, target, fsType, r.GetVolumeCapability().GetMount().GetMountFlags()); err != nil {
		return err
	}
	// The volume may have grown while it was not mounted, or be a copy of a
	// smaller one.
	if err := mount.Grow(ctx, device, target, fsType); err != nil && !errors.Is(err, mount.ErrGrowLater) {
		return errors.Join(err, mount.Unmount(target))
	}
	return nil
}

// mine returns a volume that is published to this node.
func (n *node) mine(id string) (record, error) {
	v, err := n.pool.get(volumes, id)
	if err != nil {
		return v, failure(err)
	}
	if !slices.Contains(v.Nodes, n.id) {
		return v, status.Errorf(codes.FailedPrecondition, "volume %s is not published to node %s", v.ID, n.id)
	}
	return v, nil
}

// giveBack detaches the loop device unless something still shows it.
func (n *node) giveBack(id, device string) error {
	if device == "" {
		return nil
	}
	busy, err := used(device)
	if err != nil || busy {
		return err
	}
	return mount.LoopDetach(n.pool.image(volumes, id))
}

// NodeUnstageVolume undoes NodeStageVolume.
func (n *node) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume id or no staging path")
	}
	v, err := n.pool.get(volumes, r.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	if err := mount.Unmount(r.GetStagingTargetPath()); err != nil {
		return nil, failure(err)
	}
	device, err := mount.LoopFind(n.pool.image(volumes, v.ID))
	if err == nil {
		err = n.giveBack(v.ID, device)
	}
	if err != nil {
		return nil, failure(err)
	}
	return &csipb.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume shows the staged volume at a target path.
func (n *node) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetTargetPath() == "" || r.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "no volume id, target path or capability")
	}
	if r.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.FailedPrecondition, "no staging path: the volume has to be staged first")
	}
	v, err := n.mine(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	device, err := mount.LoopFind(n.pool.image(volumes, v.ID))
	if err != nil {
		return nil, failure(err)
	}
	if device == "" {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not staged", v.ID)
	}
	if err := singleWriter(r, device); err != nil {
		return nil, failure(err)
	}
	source := r.GetStagingTargetPath()
	if r.GetVolumeCapability().GetBlock() != nil {
		source, err = device, makeFile(r.GetTargetPath())
	} else {
		err = n.makeTarget(r, v, device)
	}
	if err == nil {
		err = mount.Bind(source, r.GetTargetPath(), r.GetReadonly())
	}
	if err != nil {
		return nil, failure(err)
	}
	return &csipb.NodePublishVolumeResponse{}, nil
}

// singleWriter refuses a second target for a volume that one writer may use.
func singleWriter(r *csipb.NodePublishVolumeRequest, device string) error {
	if r.GetVolumeCapability().GetAccessMode().GetMode() != csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		return nil
	}
	points, err := mount.Below("/")
	if err != nil {
		return err
	}
	for _, p := range points {
		if shows(p, device) && p.Path != r.GetStagingTargetPath() && p.Path != r.GetTargetPath() {
			return status.Errorf(codes.FailedPrecondition, "volume %s has its single writer at %s", r.GetVolumeId(), p.Path)
		}
	}
	return nil
}

// makeTarget makes the directory for a filesystem, after a look whether it is
// staged: a bind of an empty staging directory would look like an empty
// volume.
func (n *node) makeTarget(r *csipb.NodePublishVolumeRequest, v record, device string) error {
	at, mounted, err := mount.At(r.GetStagingTargetPath())
	if err != nil {
		return err
	}
	if !mounted || at.Source != device {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not mounted at %s", v.ID, r.GetStagingTargetPath())
	}
	return os.MkdirAll(r.GetTargetPath(), 0o750)
}

// makeFile makes the empty file that a device's node is bound to.
func makeFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// NodeUnpublishVolume undoes NodePublishVolume.
func (n *node) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume id or no target path")
	}
	if _, err := n.pool.get(volumes, r.GetVolumeId()); err != nil {
		return nil, failure(err)
	}
	err := mount.Unmount(r.GetTargetPath())
	if err == nil {
		err = mount.Remove(r.GetTargetPath())
	}
	if err != nil {
		return nil, failure(err)
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume fits the device and the filesystem to the volume's size
// while they are in use.
func (n *node) NodeExpandVolume(ctx context.Context, r *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume id or no path")
	}
	v, err := n.pool.get(volumes, r.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	if v.Size < r.GetCapacityRange().GetRequiredBytes() {
		return nil, status.Errorf(codes.OutOfRange, "volume %s has %d bytes, %d are wanted", v.ID, v.Size, r.GetCapacityRange().GetRequiredBytes())
	}
	device, err := mount.LoopFind(n.pool.image(volumes, v.ID))
	if err != nil {
		return nil, failure(err)
	}
	at, mounted, err := mount.At(r.GetVolumePath())
	switch {
	case err != nil:
		return nil, failure(err)
	case device == "" || !mounted:
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", v.ID, r.GetVolumePath())
	}
	if err := mount.LoopResize(device); err != nil {
		return nil, failure(err)
	}
	if at.Source == device {
		if err := mount.Grow(ctx, device, at.Path, at.Type); err != nil {
			return nil, failure(err)
		}
	}
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: v.Size}, nil
}

// NodeGetVolumeStats says how full the volume at a path is.
func (n *node) NodeGetVolumeStats(_ context.Context, r *csipb.NodeGetVolumeStatsRequest) (*csipb.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume id or no path")
	}
	v, err := n.pool.get(volumes, r.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	at, mounted, err := mount.At(r.GetVolumePath())
	switch {
	case err != nil:
		return nil, failure(err)
	case !mounted:
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", v.ID, r.GetVolumePath())
	case at.Type == "devtmpfs":
		return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: v.Size}}}, nil
	}
	u, err := mount.Stat(r.GetVolumePath())
	if err != nil {
		return nil, failure(err)
	}
	return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: u.Total, Used: u.Used, Available: u.Available},
		{Unit: csipb.VolumeUsage_INODES, Total: u.Inodes, Used: u.InodesUsed, Available: u.InodesAvailable},
	}}, nil
}

// NodeGetInfo names the node and the pool that it reaches.
func (n *node) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: n.id, AccessibleTopology: n.pool.topology()}, nil
}

// NodeGetCapabilities says what the node service can do.
func (n *node) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, t := range []csipb.NodeServiceCapability_RPC_Type{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csipb.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return out, nil
}
