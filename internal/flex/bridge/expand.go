package bridge

import (
	"context"
	"errors"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/mount"
)

// findAt returns the record of a volume that is staged or published at a path.
func (d *driver) findAt(volumeID, path string) (*record, error) {
	all := d.b.records.list(d.name, func(r *record) bool {
		return r.Volume == volumeID && r.Place == path && (r.Kind == staged || r.Kind == published) && r.Step == done
	})
	if len(all) == 0 {
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s; stage and publish it there first", volumeID, path)
	}
	return all[0], nil
}

// NodeGetVolumeStats returns the used and free space of the volume at a path.
func (d *driver) NodeGetVolumeStats(
	_ context.Context, r *csipb.NodeGetVolumeStatsRequest,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	if !d.SupportsMetrics {
		return nil, status.Error(codes.Unimplemented, "the driver's filesystems do not report their usage")
	}
	if _, err := d.findAt(r.GetVolumeId(), r.GetVolumePath()); err != nil {
		return nil, err
	}
	u, err := mount.Stat(r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: u.Total, Used: u.Used, Available: u.Available},
		{Unit: csipb.VolumeUsage_INODES, Total: u.Inodes, Used: u.InodesUsed, Available: u.InodesAvailable},
	}}, nil
}

// NodeExpandVolume expands the volume and its filesystem. Both happen on the node, because only
// there the volume's options are known.
func (d *driver) NodeExpandVolume(
	ctx context.Context, r *csipb.NodeExpandVolumeRequest,
) (*csipb.NodeExpandVolumeResponse, error) {
	if !d.expand {
		return nil, status.Error(codes.Unimplemented, "the driver's volumes cannot be expanded")
	}
	if err := checkRange(r.GetCapacityRange()); err != nil {
		return nil, err
	}
	one, err := d.findAt(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	return inTurn(ctx, &d.b.calls, d.nodeKey(one.Volume), &inFlight{path: one.Place, wholeVolume: true, request: r},
		func(ctx context.Context) (*csipb.NodeExpandVolumeResponse, error) {
			size, err := d.grow(ctx, one, r.GetCapacityRange().GetRequiredBytes())
			return &csipb.NodeExpandVolumeResponse{CapacityBytes: size}, err
		})
}

// grow returns the volume's new size.
func (d *driver) grow(ctx context.Context, r *record, size int64) (int64, error) {
	now, err := d.ready()
	if err != nil {
		return 0, err
	}
	dir := r.Dir
	if r.Kind == staged {
		dir = r.DeviceDir
	}
	old, err := sizeOf(r.Device, dir)
	if err != nil {
		return 0, err
	}
	if size = max(size, old); size > old && !d.b.Config.Of(d.name).SkipExpandVolume {
		has, err := now.ExpandVolume(ctx, r.volume(), r.DeviceDir, size, old)
		if err != nil {
			return 0, err
		}
		size = max(size, has)
	}
	if !now.Capabilities.RequiresFSResize {
		return size, nil
	}
	err = now.ExpandFS(ctx, r.volume(), r.Device, dir, size, old)
	if errors.Is(err, flex.ErrNotSupported) && r.Device == "" {
		// Without a device, the filesystem was not made by the bridge.
		err = nil
	}
	return size, err
}

// sizeOf returns the size of a volume in bytes: that of its device or, without one, of its
// filesystem.
func sizeOf(device, dir string) (int64, error) {
	if device != "" {
		if size, err := mount.DeviceSize(device); err == nil && size > 0 {
			return size, nil
		}
	}
	u, err := mount.Stat(dir)
	return u.Total, err
}
