package bridge

import (
	"context"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/mount/fsgroup"
)

// private holds the parts of a publish request that are never written to disk.
type private struct {
	secrets map[string]string
	group   *int64
}

// NodePublishVolume makes the driver mount the volume, and bind-mounts it at the target.
func (d *driver) NodePublishVolume(
	ctx context.Context, r *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	want, hidden, err := d.parsePublish(r)
	if err != nil {
		return nil, err
	}
	return inTurn(ctx, &d.b.calls, d.nodeKey(want.Volume), &inFlight{path: want.Place, request: r},
		func(ctx context.Context) (*csipb.NodePublishVolumeResponse, error) {
			return &csipb.NodePublishVolumeResponse{}, d.publish(ctx, want, hidden)
		})
}

// parsePublish parses a publish request.
func (d *driver) parsePublish(r *csipb.NodePublishVolumeRequest) (*record, private, error) {
	want, group, err := d.wanted(published, r.GetTargetPath(), r)
	hidden := private{r.GetSecrets(), group}
	if err != nil {
		return nil, hidden, err
	}
	at := placeOf(want.Place, want.Volume)
	want.Step, want.Dir = mounting, podDir(d.b.RootDir, d.name, at)
	want.ReadOnly = want.ReadOnly || r.GetReadonly() || r.GetPublishContext()[keyReadOnly] == "true"
	want.Pod, want.Inline = podOf(r.GetVolumeContext()), isInline(r)
	if want.Inline {
		// The driver knows an inline volume by its name in the Pod.
		want.Name = at.name
		if ok, because := d.b.Config.Policy.Allow(want.Pod.Namespace, d.name, want.FSType, want.Options); !ok {
			return nil, hidden, status.Errorf(codes.PermissionDenied, "%s: %s", because.Reason, because.Message)
		}
		return want, hidden, nil
	}
	return want, hidden, d.addDevice(want, r.GetStagingTargetPath())
}

// addDevice sets the device directory from the record of the volume's staging path.
func (d *driver) addDevice(want *record, staging string) error {
	if !d.Attach {
		return nil
	}
	if staging == "" {
		return status.Error(codes.FailedPrecondition, "no staging path: the volume has to be staged first")
	}
	want.DeviceDir = deviceDir(d.b.RootDir, d.name, want.Volume)
	isStaging := func(o *record) bool { return o.Kind == staged && o.Volume == want.Volume }
	for _, s := range d.b.records.list(d.name, isStaging) {
		want.Device = s.Device
	}
	return nil
}

func (d *driver) publish(ctx context.Context, want *record, hidden private) error {
	// Calls for other volumes run concurrently, except those that use the same directory.
	defer d.b.names.Hold(want.Dir)()
	now, err := d.ready()
	if err != nil {
		return err
	}
	has := d.b.records.get(d.name, published, want.Volume, want.Place)
	if has != nil && has.Step == done {
		if !has.sameUse(want) {
			return status.Errorf(codes.AlreadyExists, "volume %s is at %s already in another way; unpublish it first",
				want.Volume, want.Place)
		}
		if ok, err := d.isMounted(has); err != nil || ok {
			return err
		}
	}
	if err := d.checkTarget(has, want); err != nil {
		return err
	}
	if err := d.publishSteps(ctx, now, has, want, hidden); err != nil {
		return d.undoFailed(ctx, now, want, err)
	}
	return nil
}

// isMounted says whether everything that a record describes is still mounted. What is written to a
// path whose mount is gone would be lost.
func (d *driver) isMounted(r *record) (bool, error) {
	points, err := d.b.table.Below(r.Place)
	if err != nil || len(points) < max(r.Mounts, 1) || !r.Mounted {
		return len(points) >= max(r.Mounts, 1), err
	}
	return d.b.table.Mounted(r.Dir)
}

// checkTarget refuses a target at which something else is mounted, and a private directory that is used
// by another target. The latter only happens to callers that do not use a kubelet's paths.
func (d *driver) checkTarget(has, want *record) error {
	if has == nil {
		if err := d.b.table.CheckFree(want.Place, false); err != nil {
			return status.Errorf(codes.FailedPrecondition, "volume %s: %v", want.Volume, err)
		}
	}
	for _, o := range d.b.records.list(d.name, func(o *record) bool { return o.Kind == published && o.Dir == want.Dir }) {
		if o.Place != want.Place || o.Volume != want.Volume {
			return status.Errorf(codes.FailedPrecondition,
				"volume %s is at %s, which has the same Pod and the same name; unpublish it first", o.Volume, o.Place)
		}
	}
	return nil
}

// publishSteps performs all steps of a publication. has is the record of an earlier attempt, or nil.
func (d *driver) publishSteps(ctx context.Context, now *flex.Driver, has, want *record, hidden private) error {
	if has != nil && want.Inline {
		// What an earlier attempt has begun must be undone later, even if the driver has changed
		// since.
		want.Device, want.DeviceDir, want.DetachName = has.Device, has.DeviceDir, has.DetachName
	}
	if want.Inline && now.Capabilities.Attach {
		if err := d.attachInline(ctx, now, has, want); err != nil {
			return err
		}
	}
	want.Step = mounting
	if err := d.b.records.put(want); err != nil {
		return err
	}
	if err := clearTarget(ctx, now, has, want); err != nil {
		return err
	}
	if err := d.mountPrivately(ctx, now, want, hidden); err != nil {
		return err
	}
	if _, err := mount.MakeDir(want.Place); err != nil {
		return err
	}
	if err := mount.Bind(want.Dir, want.Place, mount.ReadOnlyIf(want.ReadOnly)); err != nil {
		return err
	}
	points, err := d.b.table.Below(want.Place)
	if err != nil {
		return err
	}
	want.Step, want.Mounts = done, len(points)
	return d.b.records.put(want)
}

// clearTarget unmounts whatever is at the paths of a publication, because no record says that all
// of it belongs to this volume.
func clearTarget(ctx context.Context, now *flex.Driver, has, want *record) error {
	if has != nil && has.Step >= mounting {
		if err := mount.Unmount(want.Place); err != nil {
			return err
		}
	}
	return now.Clear(ctx, want.Dir)
}

// mountPrivately makes the driver mount the volume at the private path, which the bridge controls.
func (d *driver) mountPrivately(ctx context.Context, now *flex.Driver, want *record, hidden private) error {
	if err := mount.MakeBelow(d.b.RootDir, filepath.Dir(want.Dir)); err != nil {
		return err
	}
	v := want.volume()
	v.Secrets, v.FSGroup = hidden.secrets, hidden.group
	because, err := now.Mount(ctx, want.Dir, want.DeviceDir, v)
	d.logViolation(want, because, err)
	if err != nil {
		return err
	}
	if want.Mounted, err = d.b.table.Mounted(want.Dir); err != nil {
		return err
	}
	if !now.Capabilities.FSGroup || hidden.group == nil || want.ReadOnly {
		return nil
	}
	if err := fsgroup.Apply(ctx, want.Dir, int(*hidden.group), true); err != nil {
		// Some filesystems have no groups. A kubelet ignores that, too.
		d.b.Log.Warn("the group of the volume's files cannot be changed", "driver", d.csi, "volume", want.Volume, "err", err)
	}
	return nil
}

// attachInline attaches a volume that a Pod itself names; for other volumes the controller and
// NodeStageVolume do so (F-028).
func (d *driver) attachInline(ctx context.Context, now *flex.Driver, has, want *record) error {
	want.DeviceDir = deviceDir(d.b.RootDir, d.name, want.Volume)
	if want.DetachName != "" {
		if is, err := d.b.table.Mounted(want.DeviceDir); err != nil || is && has.Step >= mounting {
			return err
		}
	}
	want.Step = attaching
	var err error
	before := want.DetachName
	if before == "" {
		if want.DetachName, err = now.VolumeName(ctx, want.volume()); err != nil {
			return err
		}
	}
	if err := d.putAttaching(want, d.b.Node); err != nil {
		// It was not attached, so it must not be detached.
		want.DetachName = before
		return err
	}
	if want.Device, err = now.Attach(ctx, want.volume(), d.b.Node); err != nil {
		return err
	}
	return d.stageDevice(ctx, now, want)
}

// NodeUnpublishVolume undoes NodePublishVolume. It works without a record: the private path follows
// from the request.
func (d *driver) NodeUnpublishVolume(
	ctx context.Context, r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	path := r.GetTargetPath()
	return inTurn(ctx, &d.b.calls, d.nodeKey(r.GetVolumeId()), &inFlight{path: path, request: r},
		func(ctx context.Context) (*csipb.NodeUnpublishVolumeResponse, error) {
			return &csipb.NodeUnpublishVolumeResponse{}, d.unpublish(ctx, r.GetVolumeId(), path)
		})
}

func (d *driver) unpublish(ctx context.Context, volumeID, path string) error {
	r := d.b.records.get(d.name, published, volumeID, path)
	if r == nil {
		var err error
		if r, err = d.unrecorded(volumeID, path); r == nil || err != nil {
			return err
		}
	}
	now, err := d.kept()
	if err != nil {
		return err
	}
	return d.undo(ctx, now, r)
}

// unrecorded returns a record of what is mounted for a volume at a target without a record, or nil
// if nothing is.
func (d *driver) unrecorded(volumeID, path string) (*record, error) {
	r := &record{
		Kind: published, Driver: d.name, Volume: volumeID, Place: path, Step: mounting,
		Dir: podDir(d.b.RootDir, d.name, placeOf(path, volumeID)),
	}
	if other := d.b.records.list(d.name,
		func(o *record) bool { return o.Kind == published && o.Dir == r.Dir }); len(other) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "something else is at %s: volume %s; unpublish that",
			other[0].Place, other[0].Volume)
	}
	if err := d.checkOurs(path, r.Dir); err != nil {
		return nil, err
	}
	there, err := d.exists(r.Dir)
	if err == nil && isInlineID(volumeID) {
		// Nothing else unmounts its device. The arguments for a detach are not known.
		device := deviceDir(d.b.RootDir, d.name, volumeID)
		if r.Inline, err = d.exists(device); r.Inline {
			r.DeviceDir, there = device, true
		}
	}
	if err != nil || !there {
		return nil, err
	}
	return r, nil
}
