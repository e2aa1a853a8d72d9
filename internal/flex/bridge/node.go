package bridge

import (
	"context"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// NodeGetInfo returns the node's id.
func (d *driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: d.b.Node}, nil
}

// NodeGetCapabilities returns the capabilities of the node service.
func (d *driver) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	return csi.NodeCapabilities{
		MountGroup: true, StageUnstage: d.Attach, Stats: d.SupportsMetrics, Expand: d.expand,
	}.Answer(), nil
}

func (d *driver) nodeKey(volumeID string) string { return "node " + d.csi + " " + volumeID }

// NodeStageVolume waits for the volume's device and mounts it at a private path. Nothing is mounted
// at the staging path: a kubelet does not unstage a volume when it finds a second mount of it.
func (d *driver) NodeStageVolume(
	ctx context.Context, r *csipb.NodeStageVolumeRequest,
) (*csipb.NodeStageVolumeResponse, error) {
	want, _, err := d.wanted(staged, r.GetStagingTargetPath(), r)
	if err != nil {
		return nil, err
	}
	if !d.Attach {
		return nil, status.Error(codes.Unimplemented, "the driver does not stage")
	}
	want.Step, want.ReadOnly = device, want.ReadOnly || r.GetPublishContext()[keyReadOnly] == "true"
	want.DeviceDir, want.Device = deviceDir(d.b.RootDir, d.name, want.Volume), r.GetPublishContext()[keyDevice]
	return inTurn(ctx, &d.b.calls, d.nodeKey(want.Volume), &inFlight{path: want.Place, wholeVolume: true, request: r},
		func(ctx context.Context) (*csipb.NodeStageVolumeResponse, error) {
			return &csipb.NodeStageVolumeResponse{}, d.stage(ctx, want)
		})
}

func (d *driver) stage(ctx context.Context, want *record) error {
	now, err := d.ready()
	if err != nil {
		return err
	}
	if !now.Capabilities.Attach {
		return nil
	}
	if is, err := d.isStaged(want); err != nil || is {
		return err
	}
	if err := d.b.records.put(want); err != nil {
		return err
	}
	err = d.stageDevice(ctx, now, want)
	if err == nil {
		want.Mounted, err = d.b.table.Mounted(want.DeviceDir)
	}
	if err != nil {
		return d.undoFailed(ctx, now, want, err)
	}
	want.Step = done
	return d.b.records.put(want)
}

// isStaged says whether the volume is staged as requested. All staging paths of a volume share one
// mount.
func (d *driver) isStaged(want *record) (bool, error) {
	for _, has := range d.stagings(want.Volume) {
		if !has.sameUse(want) {
			return false, status.Errorf(codes.AlreadyExists,
				"volume %s is staged at %s already in another way; unstage it first", want.Volume, has.Place)
		}
		if has.Place == want.Place {
			is, err := d.b.table.Mounted(has.DeviceDir)
			return is || !has.Mounted, err
		}
	}
	return false, nil
}

// stagings returns the records of a volume's staging paths.
func (d *driver) stagings(volumeID string) []*record {
	return d.b.records.list(d.name, func(o *record) bool {
		return o.Kind == staged && o.Volume == volumeID && o.Step == done
	})
}

// stageDevice waits for the device and mounts it. An existing mount that has no complete record
// belongs to an unfinished call, or to an unknown volume: it is removed first.
func (d *driver) stageDevice(ctx context.Context, now *flex.Driver, r *record) error {
	if len(d.stagings(r.Volume)) == 0 {
		if err := now.Clear(ctx, r.DeviceDir); err != nil {
			return err
		}
	}
	var err error
	if r.Device, err = now.WaitForAttach(ctx, r.Device, r.volume()); err != nil {
		return err
	}
	r.Step = device
	if err := d.b.records.put(r); err != nil {
		return err
	}
	if err := mount.MakeBelow(d.b.RootDir, filepath.Dir(r.DeviceDir)); err != nil {
		return err
	}
	because, err := now.MountDevice(ctx, r.DeviceDir, r.Device, r.volume())
	d.logViolation(r, because, err)
	return err
}

// undoFailed undoes a failed call, if the call is known to have ended. Its error is final if nothing
// is left, otherwise the outcome is unknown.
func (d *driver) undoFailed(ctx context.Context, now *flex.Driver, r *record, err error) error {
	if !isFinal(err) {
		return err
	}
	if undoErr := d.undo(ctx, now, r); undoErr != nil {
		return status.Errorf(codes.Aborted, "%s; and it cannot be undone: %s", textOf(err), textOf(undoErr))
	}
	return err
}

// undo undoes everything that may exist according to a record, and removes the record.
func (d *driver) undo(ctx context.Context, now *flex.Driver, r *record) error {
	if r.Kind == staged {
		if err := d.undoDevice(ctx, now, r); err != nil {
			return err
		}
		return d.b.records.remove(r)
	}
	if r.Step >= mounting {
		if err := d.undoMount(ctx, now, r); err != nil {
			return err
		}
	}
	if r.Inline && r.DeviceDir != "" && r.Step >= device {
		if err := d.undoDevice(ctx, now, r); err != nil {
			return err
		}
	}
	if r.Inline && r.DetachName != "" {
		return d.release(ctx, now, r, r.DetachName, d.b.Node)
	}
	return d.b.records.remove(r)
}

// undoMount unmounts the volume from its target and from the driver's private path.
func (d *driver) undoMount(ctx context.Context, now *flex.Driver, r *record) error {
	if err := mount.Unmount(r.Place); err != nil {
		return err
	}
	if err := mount.Remove(r.Place); err != nil {
		return err
	}
	r.Step = mounting
	if err := d.b.records.put(r); err != nil {
		return err
	}
	because, err := now.Unmount(ctx, r.Dir)
	d.logViolation(r, because, err)
	if err != nil {
		return err
	}
	d.removeEmptyDirs(filepath.Dir(r.Dir), filepath.Join(d.b.RootDir, "pods"))
	if !r.Inline {
		return nil
	}
	r.Step = device
	return d.b.records.put(r)
}

// undoDevice unmounts a volume's device, unless the volume is staged at another path, too.
func (d *driver) undoDevice(ctx context.Context, now *flex.Driver, r *record) error {
	if r.Kind == staged {
		others := d.b.records.list(d.name, func(o *record) bool {
			return o.Kind == staged && o.Volume == r.Volume && o.Place != r.Place
		})
		if len(others) > 0 {
			return nil
		}
	}
	r.Step = device
	if err := d.b.records.put(r); err != nil {
		return err
	}
	because, err := now.UnmountDevice(ctx, r.DeviceDir)
	d.logViolation(r, because, err)
	if err != nil {
		return err
	}
	d.removeEmptyDirs(filepath.Dir(r.DeviceDir), filepath.Join(d.b.RootDir, "plugins"))
	if r.Kind == staged {
		return nil
	}
	r.Step = attaching
	return d.b.records.put(r)
}

// NodeUnstageVolume undoes NodeStageVolume. It works without a record: the private path follows
// from the request.
func (d *driver) NodeUnstageVolume(
	ctx context.Context, r *csipb.NodeUnstageVolumeRequest,
) (*csipb.NodeUnstageVolumeResponse, error) {
	path := r.GetStagingTargetPath()
	return inTurn(ctx, &d.b.calls, d.nodeKey(r.GetVolumeId()), &inFlight{path: path, wholeVolume: true, request: r},
		func(ctx context.Context) (*csipb.NodeUnstageVolumeResponse, error) {
			return &csipb.NodeUnstageVolumeResponse{}, d.unstage(ctx, r.GetVolumeId(), path)
		})
}

func (d *driver) unstage(ctx context.Context, volumeID, path string) error {
	for _, p := range d.b.records.list(d.name,
		func(o *record) bool { return o.Kind == published && o.Volume == volumeID && !o.Inline }) {
		for _, path := range []string{p.Place, p.Dir} {
			if is, err := d.b.table.Mounted(path); err != nil || is {
				return status.Errorf(codes.FailedPrecondition, "volume %s is published at %s; unpublish it first",
					volumeID, p.Place)
			}
		}
	}
	r := d.b.records.get(d.name, staged, volumeID, path)
	if r == nil {
		r = &record{
			Kind: staged, Driver: d.name, Volume: volumeID, Place: path, DeviceDir: deviceDir(d.b.RootDir, d.name, volumeID),
		}
		if there, err := d.exists(r.DeviceDir); err != nil || !there {
			return err
		}
	}
	now, err := d.kept()
	if err != nil {
		return err
	}
	return d.undo(ctx, now, r)
}

// exists says whether a file or directory is at a private path.
func (d *driver) exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if err == nil {
		return true, nil
	}
	return d.b.table.Mounted(path)
}

// checkOurs fails if something else than the mount at the private path is mounted at path, so that
// it is not unmounted.
func (d *driver) checkOurs(path, private string) error {
	at, mounted, err := d.b.table.At(path)
	if err != nil || !mounted {
		return err
	}
	own, is, err := d.b.table.At(private)
	if err == nil && (!is || own.Device != at.Device) {
		err = status.Errorf(codes.FailedPrecondition, "something else is mounted at %s; unmount that first", path)
	}
	return err
}

// removeEmptyDirs removes empty directories, from dir upwards, but not top.
func (d *driver) removeEmptyDirs(dir, top string) {
	for ; dir != top && len(dir) > len(top); dir = filepath.Dir(dir) {
		if err := mount.Remove(dir); err != nil {
			return
		}
	}
}

// logViolation logs a driver's violation of its contract.
func (d *driver) logViolation(r *record, because volume.Because, err error) {
	if err == nil && because.Reason != "" && because.Reason != volume.ReasonFlexMounted &&
		because.Reason != volume.ReasonFlexUnmounted {
		d.b.Log.Warn("driver violated its contract", "driver", d.csi, "volume", r.Volume, "reason", because.Reason,
			"message", because.Message)
	}
}
