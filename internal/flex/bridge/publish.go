package bridge

import (
	"context"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/mount/fsgroup"
)

// private is what a publication needs that is written nowhere.
type private struct {
	secrets map[string]string
	group   *int64
}

// NodePublishVolume has the driver mount the volume, and shows it at the target.
func (d *driver) NodePublishVolume(
	ctx context.Context, r *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	want, hidden, err := d.wanted(r)
	if err != nil {
		return nil, err
	}
	out, err := d.b.works.do(ctx, d.nodeKey(want.Volume), &work{path: want.Place, request: r},
		func(ctx context.Context) (proto.Message, error) {
			return &csipb.NodePublishVolumeResponse{}, d.publish(ctx, want, hidden)
		})
	if err != nil {
		return nil, err
	}
	return out.(*csipb.NodePublishVolumeResponse), nil
}

// wanted reads a request.
func (d *driver) wanted(r *csipb.NodePublishVolumeRequest) (*record, private, error) {
	var hidden private
	if err := checkID(r.GetVolumeId()); err != nil {
		return nil, hidden, err
	}
	if err := checkPath("target path", r.GetTargetPath()); err != nil {
		return nil, hidden, err
	}
	u, err := useOf(r.GetVolumeCapability())
	if err != nil {
		return nil, hidden, err
	}
	options, err := optionsOf(r.GetVolumeContext())
	if err != nil {
		return nil, hidden, err
	}
	at := placeOf(r.GetTargetPath(), r.GetVolumeId())
	want := &record{
		Kind: published, Driver: d.name, Volume: r.GetVolumeId(), Place: r.GetTargetPath(), Step: mounting,
		Name: r.GetVolumeId(), FSType: u.fsType, Options: options,
		ReadOnly: u.readOnly || r.GetReadonly() || r.GetPublishContext()[keyReadOnly] == "true",
		Pod:      podOf(r.GetVolumeContext()), Inline: isInline(r), Dir: podDir(d.b.RootDir, d.name, at),
	}
	hidden = private{r.GetSecrets(), u.group}
	if want.Inline {
		// The name that the Pod gives it is what its driver knows.
		want.Name = at.name
		if ok, because := d.b.Config.Policy.Allow(want.Pod.Namespace, d.name, u.fsType, options); !ok {
			return nil, hidden, status.Errorf(codes.PermissionDenied, "%s: %s", because.Reason, because.Message)
		}
		return want, hidden, nil
	}
	return want, hidden, d.addDevice(want, r.GetStagingTargetPath())
}

// addDevice tells where the volume is staged that is to be published.
func (d *driver) addDevice(want *record, staging string) error {
	if !d.Attach {
		return nil
	}
	if staging == "" {
		return status.Error(codes.FailedPrecondition, "no staging path: the volume has to be staged first")
	}
	want.DeviceDir = deviceDir(d.b.RootDir, d.name, want.Volume)
	for _, s := range d.b.records.of(d.name, func(o *record) bool { return o.Kind == staged && o.Volume == want.Volume }) {
		want.Device = s.Device
	}
	return nil
}

func (d *driver) publish(ctx context.Context, want *record, hidden private) error {
	// Works of other volumes go on beside this one, also those that would have
	// the same directory.
	defer d.b.names.hold(want.Dir)()
	now, err := d.ready()
	if err != nil {
		return err
	}
	has := d.b.records.get(d.name, published, want.Volume, want.Place)
	if has != nil && has.Step == done {
		if !has.like(want) {
			return status.Errorf(codes.AlreadyExists, "volume %s is at %s already in another way; unpublish it first",
				want.Volume, want.Place)
		}
		if ok, err := d.stands(has); err != nil || ok {
			return err
		}
	}
	if err := d.admit(has, want); err != nil {
		return err
	}
	if err := d.bring(ctx, now, has, want, hidden); err != nil {
		return d.undoneBy(ctx, now, want, err)
	}
	return nil
}

// stands says whether what a record says is there, all of it: what is written
// beside a mount that is gone is lost.
func (d *driver) stands(r *record) (bool, error) {
	points, err := d.b.table.Below(r.Place)
	if err != nil || len(points) < max(r.Mounts, 1) || !r.Mounted {
		return len(points) >= max(r.Mounts, 1), err
	}
	return d.b.table.Mounted(r.Dir)
}

// admit refuses a target where something else is, and a private directory that
// another target has: only a caller that makes its own paths comes to that.
func (d *driver) admit(has, want *record) error {
	if has == nil {
		if err := d.b.table.Free(want.Place, false); err != nil {
			return status.Errorf(codes.FailedPrecondition, "volume %s: %v", want.Volume, err)
		}
	}
	for _, o := range d.b.records.of(d.name, func(o *record) bool { return o.Kind == published && o.Dir == want.Dir }) {
		if o.Place != want.Place || o.Volume != want.Volume {
			return status.Errorf(codes.FailedPrecondition,
				"volume %s is at %s, which has the same Pod and the same name; unpublish it first", o.Volume, o.Place)
		}
	}
	return nil
}

// bring does all steps of a publication. has is what is known of an earlier
// attempt, nil when there was none.
func (d *driver) bring(ctx context.Context, now *flex.Driver, has, want *record, hidden private) error {
	if has != nil && want.Inline {
		// What an earlier attempt began is there to be undone, whatever the driver
		// is by now.
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

// clearTarget takes away what is at the paths of a publication: no record says
// that it is all of this volume.
func clearTarget(ctx context.Context, now *flex.Driver, has, want *record) error {
	if has != nil && has.Step >= mounting {
		if err := mount.Unmount(want.Place); err != nil {
			return err
		}
	}
	return now.Clear(ctx, want.Dir)
}

// mountPrivately has the driver mount the volume where it can be sure of the
// path.
func (d *driver) mountPrivately(ctx context.Context, now *flex.Driver, want *record, hidden private) error {
	if err := mount.MakeBelow(d.b.RootDir, filepath.Dir(want.Dir)); err != nil {
		return err
	}
	v := want.volume()
	v.Secrets, v.FSGroup = hidden.secrets, hidden.group
	because, err := now.Mount(ctx, want.Dir, want.DeviceDir, v)
	d.tell(want, because, err)
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
		// Some filesystems have no groups to give; Pods have always lived with
		// that.
		d.b.Log.Warn("files cannot be given to the group", "driver", d.csi, "volume", want.Volume, "err", err)
	}
	return nil
}

// attachInline does for a volume that a Pod names what the controller and the
// staging do for others (F-028).
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
		// It is not attached, so that nobody detaches it.
		want.DetachName = before
		return err
	}
	if want.Device, err = now.Attach(ctx, want.volume(), d.b.Node); err != nil {
		return err
	}
	return d.bringDevice(ctx, now, want)
}

// NodeUnpublishVolume undoes NodePublishVolume. It needs no record: the path
// tells where things are.
func (d *driver) NodeUnpublishVolume(
	ctx context.Context, r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	if err := checkID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkPath("target path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	path := r.GetTargetPath()
	out, err := d.b.works.do(ctx, d.nodeKey(r.GetVolumeId()), &work{path: path, request: r},
		func(ctx context.Context) (proto.Message, error) {
			return &csipb.NodeUnpublishVolumeResponse{}, d.unpublish(ctx, r.GetVolumeId(), path)
		})
	if err != nil {
		return nil, err
	}
	return out.(*csipb.NodeUnpublishVolumeResponse), nil
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
	return d.take(ctx, now, r)
}

// unrecorded returns what there is of a volume at a target of which no record is,
// nil when nothing is.
func (d *driver) unrecorded(volumeID, path string) (*record, error) {
	r := &record{
		Kind: published, Driver: d.name, Volume: volumeID, Place: path, Step: mounting,
		Dir: podDir(d.b.RootDir, d.name, placeOf(path, volumeID)),
	}
	if other := d.b.records.of(d.name,
		func(o *record) bool { return o.Kind == published && o.Dir == r.Dir }); len(other) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "something else is at %s: volume %s; unpublish that",
			other[0].Place, other[0].Volume)
	}
	if err := d.ours(path, r.Dir); err != nil {
		return nil, err
	}
	there, err := d.there(r.Dir)
	if err == nil && isInlineID(volumeID) {
		// Nobody else takes its device away. What detach would have to be called
		// with is not known.
		device := deviceDir(d.b.RootDir, d.name, volumeID)
		if r.Inline, err = d.there(device); r.Inline {
			r.DeviceDir, there = device, true
		}
	}
	if err != nil || !there {
		return nil, err
	}
	return r, nil
}
