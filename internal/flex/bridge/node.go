package bridge

import (
	"context"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// NodeGetInfo names the node.
func (d *driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: d.b.Node}, nil
}

// NodeGetCapabilities says what the node service can do.
func (d *driver) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	all := []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP}
	if d.Attach {
		all = append(all, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	if d.SupportsMetrics {
		all = append(all, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	}
	if d.expand {
		all = append(all, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	}
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, t := range all {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return out, nil
}

func (d *driver) nodeKey(volumeID string) string { return "node " + d.csi + " " + volumeID }

// NodeStageVolume waits for the volume's device and mounts it, at a private path.
// Nothing is mounted at the staging path: a kubelet unstages no volume of which
// it finds a second mount.
func (d *driver) NodeStageVolume(
	ctx context.Context, r *csipb.NodeStageVolumeRequest,
) (*csipb.NodeStageVolumeResponse, error) {
	if err := checkID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkPath("staging path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	u, err := useOf(r.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	options, err := optionsOf(r.GetVolumeContext())
	if err != nil {
		return nil, err
	}
	if !d.Attach {
		return nil, status.Error(codes.Unimplemented, "the driver does not stage")
	}
	want := &record{
		Kind: staged, Driver: d.name, Volume: r.GetVolumeId(), Place: r.GetStagingTargetPath(), Step: device,
		Name: r.GetVolumeId(), FSType: u.fsType, ReadOnly: u.readOnly || r.GetPublishContext()[keyReadOnly] == "true",
		Options:   options,
		DeviceDir: deviceDir(d.b.RootDir, d.name, r.GetVolumeId()), Device: r.GetPublishContext()[keyDevice],
	}
	out, err := d.b.works.do(ctx, d.nodeKey(want.Volume), &work{path: want.Place, wide: true, request: r},
		func(ctx context.Context) (proto.Message, error) {
			return &csipb.NodeStageVolumeResponse{}, d.stage(ctx, want)
		})
	if err != nil {
		return nil, err
	}
	return out.(*csipb.NodeStageVolumeResponse), nil
}

func (d *driver) stage(ctx context.Context, want *record) error {
	now, err := d.ready()
	if err != nil {
		return err
	}
	if !now.Capabilities.Attach {
		return nil
	}
	if is, err := d.stagedStill(want); err != nil || is {
		return err
	}
	if err := d.b.records.put(want); err != nil {
		return err
	}
	err = d.bringDevice(ctx, now, want)
	if err == nil {
		want.Mounted, err = d.b.table.Mounted(want.DeviceDir)
	}
	if err != nil {
		return d.undoneBy(ctx, now, want, err)
	}
	want.Step = done
	return d.b.records.put(want)
}

// stagedStill says whether the volume is staged as it is wanted. All its staging
// paths share what is mounted.
func (d *driver) stagedStill(want *record) (bool, error) {
	for _, has := range d.stagings(want.Volume) {
		if !has.like(want) {
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

// stagings returns where a volume is staged.
func (d *driver) stagings(volumeID string) []*record {
	return d.b.records.of(d.name, func(o *record) bool {
		return o.Kind == staged && o.Volume == volumeID && o.Step == done
	})
}

// bringDevice waits for the device and has it mounted. What is mounted there and
// stands in no record that is done is of an unfinished work, or of nobody knows
// which volume: it does not pass for this one.
func (d *driver) bringDevice(ctx context.Context, now *flex.Driver, r *record) error {
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
	d.tell(r, because, err)
	return err
}

// undoneBy takes away what a work that failed has brought, when it is known that
// it has ended. The error says then that nothing is left, else that something
// may be.
func (d *driver) undoneBy(ctx context.Context, now *flex.Driver, r *record, err error) error {
	if !isFinal(err) {
		return err
	}
	if again := d.take(ctx, now, r); again != nil {
		return status.Errorf(codes.Aborted, "%s; and what was begun cannot be taken away: %s", textOf(err), textOf(again))
	}
	return err
}

// take takes away all that a record says may be there, and forgets it.
func (d *driver) take(ctx context.Context, now *flex.Driver, r *record) error {
	if r.Kind == staged {
		if err := d.takeDevice(ctx, now, r); err != nil {
			return err
		}
		return d.b.records.drop(r)
	}
	if r.Step >= mounting {
		if err := d.takeMount(ctx, now, r); err != nil {
			return err
		}
	}
	if r.Inline && r.DeviceDir != "" && r.Step >= device {
		if err := d.takeDevice(ctx, now, r); err != nil {
			return err
		}
	}
	if r.Inline && r.DetachName != "" {
		return d.release(ctx, now, r, r.DetachName, d.b.Node)
	}
	return d.b.records.drop(r)
}

// takeMount takes the volume from its target, and away from where the driver
// mounted it.
func (d *driver) takeMount(ctx context.Context, now *flex.Driver, r *record) error {
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
	d.tell(r, because, err)
	if err != nil {
		return err
	}
	d.tidy(filepath.Dir(r.Dir), filepath.Join(d.b.RootDir, "pods"))
	if !r.Inline {
		return nil
	}
	r.Step = device
	return d.b.records.put(r)
}

// takeDevice takes a device away from where it is mounted, unless it is staged
// at another path, too.
func (d *driver) takeDevice(ctx context.Context, now *flex.Driver, r *record) error {
	if r.Kind == staged {
		others := d.b.records.of(d.name, func(o *record) bool {
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
	d.tell(r, because, err)
	if err != nil {
		return err
	}
	d.tidy(filepath.Dir(r.DeviceDir), filepath.Join(d.b.RootDir, "plugins"))
	if r.Kind == staged {
		return nil
	}
	r.Step = attaching
	return d.b.records.put(r)
}

// NodeUnstageVolume undoes NodeStageVolume. It needs no record: the paths tell
// where things are.
func (d *driver) NodeUnstageVolume(
	ctx context.Context, r *csipb.NodeUnstageVolumeRequest,
) (*csipb.NodeUnstageVolumeResponse, error) {
	if err := checkID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkPath("staging path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	path := r.GetStagingTargetPath()
	out, err := d.b.works.do(ctx, d.nodeKey(r.GetVolumeId()), &work{path: path, wide: true, request: r},
		func(ctx context.Context) (proto.Message, error) {
			return &csipb.NodeUnstageVolumeResponse{}, d.unstage(ctx, r.GetVolumeId(), path)
		})
	if err != nil {
		return nil, err
	}
	return out.(*csipb.NodeUnstageVolumeResponse), nil
}

func (d *driver) unstage(ctx context.Context, volumeID, path string) error {
	for _, p := range d.b.records.of(d.name,
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
		if there, err := d.there(r.DeviceDir); err != nil || !there {
			return err
		}
	}
	now, err := d.kept()
	if err != nil {
		return err
	}
	return d.take(ctx, now, r)
}

// there says whether anything is at a private path.
func (d *driver) there(path string) (bool, error) {
	_, err := os.Lstat(path)
	if err == nil {
		return true, nil
	}
	return d.b.table.Mounted(path)
}

// ours refuses to take away from a path what is not of the private one.
func (d *driver) ours(path, private string) error {
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

// tidy removes empty directories, upwards until one below top.
func (d *driver) tidy(dir, top string) {
	for ; dir != top && len(dir) > len(top); dir = filepath.Dir(dir) {
		if err := mount.Remove(dir); err != nil {
			return
		}
	}
}

// tell logs what a driver did that is not as it should be.
func (d *driver) tell(r *record, because volume.Because, err error) {
	if err == nil && because.Reason != "" && because.Reason != volume.ReasonFlexMounted &&
		because.Reason != volume.ReasonFlexUnmounted {
		d.b.Log.Warn("driver did not do as it should", "driver", d.csi, "volume", r.Volume, "reason", because.Reason,
			"message", because.Message)
	}
}
