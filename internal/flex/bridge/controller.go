package bridge

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
	flex "volplane.dev/volplane/internal/flex/driver"
)

// ControllerGetCapabilities returns the capabilities of the controller service.
func (d *driver) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	return csi.ControllerCapabilities{
		PublishUnpublish: d.Attach, PublishReadonly: d.Attach, CreateDelete: d.provision,
	}.Answer(), nil
}

// ControllerPublishVolume attaches a volume to a node.
func (d *driver) ControllerPublishVolume(
	ctx context.Context, r *csipb.ControllerPublishVolumeRequest,
) (*csipb.ControllerPublishVolumeResponse, error) {
	if r.GetNodeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no node id")
	}
	if !d.Attach {
		return nil, status.Error(codes.Unimplemented, "the driver does not attach")
	}
	want, _, err := d.wanted(attached, r.GetNodeId(), r)
	if err != nil {
		return nil, err
	}
	if own := d.b.records.get(d.name, made, want.Volume, ""); own != nil && len(want.Options) == 0 {
		want.Options = own.Options
	}
	want.Step, want.ReadOnly = attaching, want.ReadOnly || r.GetReadonly()
	return inTurn(ctx, &d.b.calls, d.attachKey(want.Volume), &inFlight{path: want.Place, request: r},
		func(ctx context.Context) (*csipb.ControllerPublishVolumeResponse, error) {
			return d.attach(ctx, want)
		})
}

func (d *driver) attachKey(volumeID string) string { return "attach " + d.csi + " " + volumeID }

// attach attaches a volume unless it is attached already.
func (d *driver) attach(ctx context.Context, want *record) (*csipb.ControllerPublishVolumeResponse, error) {
	now, err := d.ready()
	if err != nil {
		return nil, err
	}
	if !now.Capabilities.Attach {
		return &csipb.ControllerPublishVolumeResponse{}, nil
	}
	if has, err := d.findAttached(ctx, now, want); has != nil || err != nil {
		return contextOf(has), err
	}
	if want.DetachName, err = now.VolumeName(ctx, want.volume()); err != nil {
		return nil, err
	}
	if err := d.putAttaching(want, want.Place); err != nil {
		return nil, err
	}
	if want.Device, err = now.Attach(ctx, want.volume(), want.Place); err != nil {
		return nil, err
	}
	want.Step = done
	if err := d.b.records.put(want); err != nil {
		return nil, err
	}
	return contextOf(want), nil
}

// findAttached returns the record of a volume that is attached as requested, or nil. If the driver
// cannot say whether the volume is attached, the record counts.
func (d *driver) findAttached(ctx context.Context, now *flex.Driver, want *record) (*record, error) {
	has := d.b.records.get(d.name, attached, want.Volume, want.Place)
	if has == nil || has.Step != done {
		return nil, nil
	}
	if !has.sameUse(want) {
		return nil, status.Errorf(codes.AlreadyExists,
			"volume %s is attached to %.80q already in another way; detach it first", want.Volume, want.Place)
	}
	is, known, err := now.IsAttached(ctx, has.volume(), has.Place)
	if err != nil || known && !is {
		return nil, err
	}
	return has, nil
}

// contextOf returns the publish context for the node; nil if it is empty.
func contextOf(r *record) *csipb.ControllerPublishVolumeResponse {
	out := &csipb.ControllerPublishVolumeResponse{PublishContext: map[string]string{}}
	if r == nil {
		return out
	}
	if r.Device != "" {
		out.PublishContext[keyDevice] = r.Device
	}
	if r.ReadOnly {
		out.PublishContext[keyReadOnly] = "true"
	}
	return out
}

// ControllerUnpublishVolume detaches a volume from a node, or from all nodes that records name.
func (d *driver) ControllerUnpublishVolume(
	ctx context.Context, r *csipb.ControllerUnpublishVolumeRequest,
) (*csipb.ControllerUnpublishVolumeResponse, error) {
	one := &inFlight{path: r.GetNodeId(), wholeVolume: r.GetNodeId() == "", request: r}
	return inTurn(ctx, &d.b.calls, d.attachKey(r.GetVolumeId()), one,
		func(ctx context.Context) (*csipb.ControllerUnpublishVolumeResponse, error) {
			return &csipb.ControllerUnpublishVolumeResponse{}, d.detachAll(ctx, r.GetVolumeId(), r.GetNodeId())
		})
}

func (d *driver) detachAll(ctx context.Context, volumeID, node string) error {
	all := d.b.records.list(d.name, func(r *record) bool {
		return r.Kind == attached && r.Volume == volumeID && (node == "" || r.Place == node)
	})
	if len(all) == 0 && node != "" {
		// It may have been attached without a record. Kubernetes detaches then, too.
		all = append(all, &record{Kind: attached, Driver: d.name, Volume: volumeID, Place: node})
	}
	now, err := d.kept()
	if err != nil {
		return err
	}
	for _, r := range all {
		if err := d.detach(ctx, now, r); err != nil {
			return err
		}
	}
	return nil
}

// detach detaches a volume. It fails while the volume is mounted on this host, also without a
// record.
func (d *driver) detach(ctx context.Context, now *flex.Driver, r *record) error {
	if r.Place == d.b.Node {
		// Also without a record.
		paths := []string{deviceDir(d.b.RootDir, d.name, r.Volume)}
		for _, here := range d.b.records.list(d.name,
			func(o *record) bool { return o.Volume == r.Volume && o.Kind == published }) {
			paths = append(paths, here.Dir)
		}
		for _, path := range paths {
			if mounted, err := d.b.table.Mounted(path); err != nil || mounted {
				return status.Errorf(codes.FailedPrecondition, "volume %s is mounted at %s still; unstage it first", r.Volume, path)
			}
		}
	}
	name := r.Volume
	if r.Step != nothing {
		name, r.Step = r.DetachName, attaching
		if err := d.b.records.put(r); err != nil {
			return err
		}
	}
	return d.release(ctx, now, r, name, r.Place)
}

// CreateVolume creates a volume, which consists only of options for the driver. The driver is not
// called: it allocates storage when the volume is mounted.
func (d *driver) CreateVolume(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	if !d.provision {
		return nil, status.Error(codes.Unimplemented, "the configuration does not allow to create volumes of this driver")
	}
	if err := checkCreate(r); err != nil {
		return nil, err
	}
	need := r.GetCapacityRange().GetRequiredBytes()
	options, err := optionsOf(expanded(r.GetParameters(), r.GetName()))
	if err != nil {
		return nil, err
	}
	want := &record{Kind: made, Driver: d.name, Volume: r.GetName(), Options: options, Bytes: need}
	return inTurn(ctx, &d.b.calls, d.createKey(want.Volume), &inFlight{wholeVolume: true, request: r},
		func(context.Context) (*csipb.CreateVolumeResponse, error) {
			return &csipb.CreateVolumeResponse{
				Volume: &csipb.Volume{VolumeId: want.Volume, CapacityBytes: need, VolumeContext: options},
			}, d.createVolume(want)
		})
}

func (d *driver) createKey(volumeID string) string { return "made " + d.csi + " " + volumeID }

func (d *driver) createVolume(want *record) error {
	has := d.b.records.get(d.name, made, want.Volume, "")
	if has != nil && (has.Bytes != want.Bytes || !has.sameUse(want)) {
		return status.Errorf(codes.AlreadyExists, "volume %s already exists with another size or other "+
			"parameters", want.Volume)
	}
	return d.b.records.put(want)
}

// checkCreate refuses requests that FlexVolume cannot fulfil.
func checkCreate(r *csipb.CreateVolumeRequest) error {
	if err := checkID(r.GetName()); err != nil {
		return err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return status.Error(codes.InvalidArgument, "no capability")
	}
	for _, c := range r.GetVolumeCapabilities() {
		if _, err := useOf(c); err != nil {
			return err
		}
	}
	if r.GetVolumeContentSource() != nil {
		return status.Error(codes.InvalidArgument, "FlexVolume drivers copy no volumes")
	}
	return checkRange(r.GetCapacityRange())
}

// checkRange refuses contradictory sizes.
func checkRange(r *csipb.CapacityRange) error {
	need, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if need < 0 || limit < 0 || limit > 0 && need > limit {
		return status.Error(codes.OutOfRange, "no size is as large as that and as small")
	}
	return nil
}

// DeleteVolume removes the record of a volume. The driver keeps its data.
func (d *driver) DeleteVolume(ctx context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	return inTurn(ctx, &d.b.calls, d.createKey(r.GetVolumeId()), &inFlight{wholeVolume: true, request: r},
		func(context.Context) (*csipb.DeleteVolumeResponse, error) {
			return &csipb.DeleteVolumeResponse{}, d.deleteVolume(r.GetVolumeId())
		})
}

func (d *driver) deleteVolume(volumeID string) error {
	if used := d.b.records.list(d.name,
		func(o *record) bool { return o.Volume == volumeID && o.Kind != made }); len(used) > 0 {
		return status.Errorf(codes.FailedPrecondition, "volume %s is %s at %s; end that first", volumeID, used[0].Kind,
			used[0].Place)
	}
	return d.b.records.remove(&record{Kind: made, Driver: d.name, Volume: volumeID})
}

// ValidateVolumeCapabilities confirms the capabilities that any volume has. Drivers cannot list
// volumes; a volume is known to exist if it was created or used here.
func (d *driver) ValidateVolumeCapabilities(
	_ context.Context, r *csipb.ValidateVolumeCapabilitiesRequest,
) (*csipb.ValidateVolumeCapabilitiesResponse, error) {
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "no capability")
	}
	if known := d.b.records.list(d.name, func(o *record) bool { return o.Volume == r.GetVolumeId() }); len(known) == 0 &&
		d.provision {
		return nil, status.Errorf(codes.NotFound, "volume %s was neither created nor used here", r.GetVolumeId())
	}
	for _, c := range r.GetVolumeCapabilities() {
		if _, err := useOf(c); err != nil {
			return &csipb.ValidateVolumeCapabilitiesResponse{Message: textOf(err)}, nil
		}
	}
	return &csipb.ValidateVolumeCapabilitiesResponse{Confirmed: &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}
