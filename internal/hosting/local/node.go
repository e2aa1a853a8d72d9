package local

import (
	"context"
	"errors"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/mount"
)

// node is the CSI node service.
type node struct {
	csipb.UnimplementedNodeServer
	pool *pool
	id   string
	// keep is as in Options.
	keep int64
}

// mine locks a volume that is published to this node.
func (n *node) mine(ctx context.Context, id string) (record, func(), error) {
	v, release, err := n.pool.hold(ctx, volumes, id, unix.LOCK_EX, holdLimit)
	if err != nil {
		return v, nil, err
	}
	if v.Node != n.id {
		release()
		return v, nil, status.Errorf(codes.FailedPrecondition,
			"volume %s is not published to node %.128q; publish it there first", v.ID, n.id)
	}
	return v, release, nil
}

// NodeStageVolume creates the volume's device and mounts its filesystem, which is made if the
// device is blank.
func (n *node) NodeStageVolume(
	ctx context.Context, r *csipb.NodeStageVolumeRequest,
) (*csipb.NodeStageVolumeResponse, error) {
	if err := checkPath("staging path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	fsType, err := checkCapabilities([]*csipb.VolumeCapability{r.GetVolumeCapability()})
	if err != nil {
		return nil, err
	}
	v, release, err := n.mine(ctx, r.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	defer release()
	if fsType == "" {
		err = n.stageBlock(ctx, v, r)
	} else {
		err = n.stageFilesystem(ctx, v, fsType, r)
	}
	if err != nil {
		return nil, failure(n.pool.explain(err))
	}
	return &csipb.NodeStageVolumeResponse{}, nil
}

// stageBlock creates the device. From now on its content is unknown, so an unfinished filesystem is
// no longer a reason to erase it.
func (n *node) stageBlock(ctx context.Context, v record, r *csipb.NodeStageVolumeRequest) error {
	if err := durable.Remove(n.pool.formattingPath(v.ID)); err != nil {
		return err
	}
	_, err := n.pool.attach(ctx, v, n.useOf("", r.GetVolumeCapability()))
	return err
}

func (n *node) stageFilesystem(ctx context.Context, v record, fsType string, r *csipb.NodeStageVolumeRequest) error {
	if err := n.pool.restartFormat(ctx, v); err != nil {
		return err
	}
	device, err := n.pool.attach(ctx, v, n.useOf(fsType, r.GetVolumeCapability()))
	if err != nil {
		return err
	}
	target := r.GetStagingTargetPath()
	at, mounted, err := n.pool.mounts.Look(target)
	switch {
	case err != nil:
		return err
	case mounted && at.Source == device && at.Type != fsType:
		return status.Errorf(codes.AlreadyExists, "volume %s is at %s as %s, not %s", v.ID, target, at.Type, fsType)
	case mounted && at.Source == device:
		return nil
	}
	if err := n.mountNew(ctx, v, device, fsType, r); err != nil {
		return errors.Join(n.pool.byHand(v, err), n.release(ctx, v))
	}
	return nil
}

// mountNew mounts at a staging path where nothing is mounted; it removes what it has created if it
// fails.
func (n *node) mountNew(ctx context.Context, v record, device, fsType string, r *csipb.NodeStageVolumeRequest) error {
	made, err := mount.MakeDir(r.GetStagingTargetPath())
	if err == nil {
		err = n.mountAt(ctx, v, device, fsType, r)
	}
	if err != nil && made {
		err = errors.Join(err, n.pool.mounts.Remove(r.GetStagingTargetPath()))
	}
	return err
}

func (n *node) mountAt(ctx context.Context, v record, device, fsType string, r *csipb.NodeStageVolumeRequest) error {
	target, options := r.GetStagingTargetPath(), r.GetVolumeCapability().GetMount().GetMountFlags()
	made, err := n.pool.format(ctx, v, device, fsType)
	if err != nil {
		return err
	}
	readOnly := slices.Contains(options, "ro")
	if !made && !readOnly {
		if err := n.pool.growUnmounted(ctx, device, fsType); err != nil {
			return err
		}
	}
	if v.Preallocated {
		// Space that was given back before is taken again. If the disk no longer has it, the volume is used without it.
		_ = n.pool.allocate(v.ID, v.Size, n.keep)
	}
	options = append(slices.Clone(options), ownOptions(v, fsType)...)
	if made {
		return mount.NewDevice(ctx, device, target, fsType, options)
	}
	if err := mount.Device(ctx, device, target, fsType, options); err != nil || readOnly {
		return err
	}
	// The volume may have been expanded while it was not mounted, or be a copy of a smaller one.
	if err := mount.Expand(ctx, device, target, fsType); err != nil && !errors.Is(err, mount.ErrExpandLater) {
		return errors.Join(err, mount.Unmount(target))
	}
	return nil
}

// growUnmounted expands the filesystem of a device that is mounted nowhere to the size of the device.
func (p *pool) growUnmounted(ctx context.Context, device, fsType string) error {
	elsewhere, err := p.mountedAt(device)
	if err != nil || elsewhere != "" {
		return err
	}
	return mount.ExpandUnmounted(ctx, device, fsType)
}

// ownOptions returns the mount options that the driver adds to those of the user.
func ownOptions(v record, fsType string) []string {
	switch {
	case fsType == "xfs":
		// A clone has the UUID of its source; both may be mounted at the same time.
		return []string{"nouuid"}
	case fsType == "ext4" && v.Preallocated:
		// The tables that ext4 would zero later are zero already. Zeroing them would allocate their space again.
		return []string{"noinit_itable"}
	}
	return nil
}

// NodeUnstageVolume undoes NodeStageVolume.
func (n *node) NodeUnstageVolume(
	ctx context.Context, r *csipb.NodeUnstageVolumeRequest,
) (*csipb.NodeUnstageVolumeResponse, error) {
	if err := checkPath("staging path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	v, release, err := n.pool.hold(ctx, volumes, r.GetVolumeId(), unix.LOCK_EX, holdLimit)
	if err != nil {
		return nil, failure(err)
	}
	defer release()
	if err := n.thawOurs(v, r.GetStagingTargetPath()); err != nil {
		return nil, failure(err)
	}
	if err := n.unmount(v, r.GetStagingTargetPath()); err != nil {
		return nil, failure(err)
	}
	if err := n.release(ctx, v); err != nil {
		return nil, failure(err)
	}
	return &csipb.NodeUnstageVolumeResponse{}, nil
}

// release detaches the device unless it is still mounted: by a node of this host that counts as
// dead, for example. Then the unstage on that node, or the deletion of the volume, detaches it.
func (n *node) release(ctx context.Context, v record) error {
	device, err := n.pool.loops.Find(n.pool.image(volumes, v.ID))
	if err != nil || device == "" {
		return err
	}
	if at, err := n.pool.shownAt(device); err != nil || at != "" {
		return err
	}
	return n.pool.detach(ctx, v.ID)
}

// thawOurs thaws the filesystem of a locked volume that is mounted at path. A frozen filesystem would stay in the
// kernel after its unmount, and keep its device.
func (n *node) thawOurs(v record, path string) error {
	device, err := n.pool.loops.Find(n.pool.image(volumes, v.ID))
	if err != nil {
		return err
	}
	if at, mounted, err := n.pool.mounts.Look(path); err != nil || !mounted || at.Source != device {
		return err
	}
	mount.Thaw(path)
	return nil
}

// unmount unmounts the volume at path. It fails if something else is mounted there.
func (n *node) unmount(v record, path string) error {
	device, err := n.pool.loops.Find(n.pool.image(volumes, v.ID))
	if err != nil {
		return err
	}
	if err := checkOurs(v, device, path); err != nil {
		return err
	}
	return mount.Unmount(path)
}

// NodeExpandVolume expands the device and the filesystem to the volume's size while they are in
// use.
func (n *node) NodeExpandVolume(
	ctx context.Context, r *csipb.NodeExpandVolumeRequest,
) (*csipb.NodeExpandVolumeResponse, error) {
	v, release, err := n.pool.hold(ctx, volumes, r.GetVolumeId(), unix.LOCK_EX, holdLimit)
	if err != nil {
		return nil, failure(err)
	}
	defer release()
	if err := checkRange(r.GetCapacityRange()); err != nil {
		return nil, err
	}
	if v.Size < r.GetCapacityRange().GetRequiredBytes() {
		return nil, status.Errorf(codes.OutOfRange,
			"volume %s has %d bytes, %d are wanted; expand it in the controller first", v.ID, v.Size,
			r.GetCapacityRange().GetRequiredBytes())
	}
	if err := n.fit(ctx, v, r); err != nil {
		return nil, failure(err)
	}
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: v.Size}, nil
}

// fit expands the device of a locked volume to the volume's size, and the filesystem at the path.
func (n *node) fit(ctx context.Context, v record, r *csipb.NodeExpandVolumeRequest) error {
	device, err := n.pool.loops.Find(n.pool.image(volumes, v.ID))
	if err != nil {
		return err
	}
	at, _, err := n.pool.mounts.Look(r.GetVolumePath())
	if err != nil {
		return err
	}
	// The staging path of a raw device is not a mount point.
	staged := r.GetVolumeCapability().GetBlock() != nil && r.GetVolumePath() == r.GetStagingTargetPath()
	if device == "" || !shows(at, device) && !staged {
		return notAt(v, r.GetVolumePath())
	}
	if err := mount.LoopResize(device); err != nil {
		return err
	}
	if at.Source != device {
		return nil
	}
	return n.grow(ctx, v, at, r.GetStagingTargetPath())
}

// grow expands the filesystem of a locked volume that is mounted at a point, and staged at a path. The kernel needs a
// writable mount for that, which the Pod's may not be.
func (n *node) grow(ctx context.Context, v record, at mount.Point, staging string) error {
	if at.ReadOnly {
		staged, _, err := n.pool.mounts.Look(staging)
		if err != nil {
			return err
		}
		if staged.Source == at.Source {
			at = staged
		}
	}
	err := mount.Expand(ctx, at.Source, at.Path, at.Type)
	if err != nil && (at.ReadOnly || at.NoWrites) {
		return status.Errorf(codes.FailedPrecondition,
			"volume %s is mounted read-only, and its filesystem cannot be expanded; mount it read-write", v.ID)
	}
	return err
}

func notAt(v record, path string) error {
	return status.Errorf(codes.NotFound, "volume %s is not at %s; stage and publish it there first", v.ID, path)
}

// NodeGetVolumeStats returns the used and free space of the volume at a path.
func (n *node) NodeGetVolumeStats(
	_ context.Context, r *csipb.NodeGetVolumeStatsRequest,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	v, err := n.pool.get(volumes, r.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	device, err := n.pool.loops.Find(n.pool.image(volumes, v.ID))
	if err != nil {
		return nil, failure(err)
	}
	at, _, err := n.pool.mounts.Look(r.GetVolumePath())
	switch {
	case err != nil:
		return nil, failure(err)
	case !shows(at, device):
		return nil, notAt(v, r.GetVolumePath())
	case at.Source != device:
		return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: v.Size}}},
			nil
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

// NodeGetInfo returns the node's id and the pool that it uses.
func (n *node) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: n.id, AccessibleTopology: n.pool.topology()}, nil
}

// NodeGetCapabilities lists the capabilities of the node service.
func (n *node) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	return csi.NodeCapabilities{
		StageUnstage: true, Expand: true, Stats: true, SingleNodeMultiWriter: true, VolumeHealth: true, StorageHealth: true,
	}.Answer(), nil
}
