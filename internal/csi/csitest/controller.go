package csitest

import (
	"context"
	"maps"
	"slices"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// defaultBytes is the size of a volume if the request has none.
	defaultBytes = 1 << 30
	// maxBytes is the largest volume that Driver creates.
	maxBytes = 1 << 50
)

// vol is one volume and its use.
type vol struct {
	id, name string
	bytes    int64
	source   *csipb.VolumeContentSource
	mutable  map[string]string
	// attached holds the publish request of each node.
	attached map[string]*csipb.ControllerPublishVolumeRequest
	// staged is the stage request on this node, or nil; published holds the publish requests by
	// target path.
	staged    *csipb.NodeStageVolumeRequest
	published map[string]*csipb.NodePublishVolumeRequest
}

// Volume is the state of one volume of a Driver.
type Volume struct {
	ID, Name string
	Bytes    int64
	// Nodes holds the ids of the nodes that the volume is published to, sorted.
	Nodes []string
	// Staged is the staging path, empty if the volume is not staged; Published holds the target
	// paths, sorted.
	Staged    string
	Published []string
	// Mutable holds the parameters that ControllerModifyVolume has set.
	Mutable map[string]string
}

// Volumes returns all volumes, sorted by name.
func (d *Driver) Volumes() []Volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Volume
	for _, id := range slices.Sorted(maps.Keys(d.volumes)) {
		v := d.volumes[id]
		out = append(out, Volume{
			ID: v.id, Name: v.name, Bytes: v.bytes, Nodes: slices.Sorted(maps.Keys(v.attached)),
			Staged: v.staged.GetStagingTargetPath(), Published: slices.Sorted(maps.Keys(v.published)),
			Mutable: maps.Clone(v.mutable),
		})
	}
	return out
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// find returns a volume; d.mu is held.
func (d *Driver) find(id string) (*vol, error) {
	if id == "" {
		return nil, invalid("no volume id")
	}
	v := d.volumes[id]
	if v == nil {
		return nil, status.Errorf(codes.NotFound, "volume %s does not exist", id)
	}
	return v, nil
}

// sizeFor chooses the size for a request.
func sizeFor(r *csipb.CapacityRange) (int64, error) {
	need, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case need < 0 || limit < 0:
		return 0, invalid("negative capacity")
	case limit > 0 && need > limit, need > maxBytes:
		return 0, status.Error(codes.OutOfRange, "no volume has that capacity")
	case need > 0:
		return need, nil
	case limit > 0:
		return min(limit, defaultBytes), nil
	}
	return defaultBytes, nil
}

// CreateVolume creates a volume, or returns the existing one with the name.
func (d *Driver) CreateVolume(_ context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	if r.GetName() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, invalid("a name and a capability are required")
	}
	bytes, err := sizeFor(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	id := "id-" + r.GetName()
	if v := d.volumes[id]; v != nil {
		if !v.matches(r) {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s is another one", r.GetName())
		}
		return &csipb.CreateVolumeResponse{Volume: d.answer(v)}, nil
	}
	if err := d.checkSource(r.GetVolumeContentSource()); err != nil {
		return nil, err
	}
	if d.config.Capacity > 0 && d.used()+bytes > d.config.Capacity {
		return nil, status.Error(codes.ResourceExhausted, "no room is left")
	}
	v := &vol{
		id: id, name: r.GetName(), bytes: bytes, source: r.GetVolumeContentSource(), mutable: r.GetMutableParameters(),
		attached: map[string]*csipb.ControllerPublishVolumeRequest{}, published: map[string]*csipb.NodePublishVolumeRequest{},
	}
	d.volumes[id] = v
	return &csipb.CreateVolumeResponse{Volume: d.answer(v)}, nil
}

// checkSource fails unless the source of a volume's data exists; d.mu is held.
func (d *Driver) checkSource(source *csipb.VolumeContentSource) error {
	switch id := source.GetSnapshot().GetSnapshotId(); {
	case source == nil:
		return nil
	case id == "":
		_, err := d.find(source.GetVolume().GetVolumeId())
		return err
	case d.snapshots[id] == nil:
		return status.Errorf(codes.NotFound, "there is no snapshot %s", id)
	}
	return nil
}

// matches says whether an existing volume satisfies a request.
func (v *vol) matches(r *csipb.CreateVolumeRequest) bool {
	limit := r.GetCapacityRange().GetLimitBytes()
	return v.bytes >= r.GetCapacityRange().GetRequiredBytes() && (limit == 0 || v.bytes <= limit) &&
		proto.Equal(v.source, r.GetVolumeContentSource())
}

func (d *Driver) used() int64 {
	var sum int64
	for _, v := range d.volumes {
		sum += v.bytes
	}
	return sum
}

func (d *Driver) answer(v *vol) *csipb.Volume {
	out := &csipb.Volume{
		VolumeId: v.id, CapacityBytes: v.bytes, ContentSource: v.source, VolumeContext: map[string]string{"name": v.name},
	}
	if d.config.Plugin.AccessibilityConstraints {
		out.AccessibleTopology = []*csipb.Topology{{Segments: d.config.Segments}}
	}
	return out
}

// DeleteVolume removes a volume that is not in use.
func (d *Driver) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.volumes[r.GetVolumeId()]; v != nil && (len(v.attached) > 0 || v.staged != nil || len(v.published) > 0) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is in use", r.GetVolumeId())
	}
	delete(d.volumes, r.GetVolumeId())
	return &csipb.DeleteVolumeResponse{}, nil
}

// ControllerPublishVolume attaches a volume to a node.
func (d *Driver) ControllerPublishVolume(
	_ context.Context, r *csipb.ControllerPublishVolumeRequest,
) (*csipb.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if r.GetNodeId() != d.config.NodeID && !slices.Contains(d.config.OtherNodes, r.GetNodeId()) {
		return nil, status.Errorf(codes.NotFound, "node does not exist: %s", r.GetNodeId())
	}
	if before := v.attached[r.GetNodeId()]; before != nil {
		if before.GetReadonly() != r.GetReadonly() || !proto.Equal(before.GetVolumeCapability(), r.GetVolumeCapability()) {
			return nil, status.Error(codes.AlreadyExists, "the volume is published in another way")
		}
	} else if err := d.mayAttach(v, r); err != nil {
		return nil, err
	}
	v.attached[r.GetNodeId()] = r
	return &csipb.ControllerPublishVolumeResponse{PublishContext: map[string]string{"node": r.GetNodeId()}}, nil
}

func (d *Driver) mayAttach(v *vol, r *csipb.ControllerPublishVolumeRequest) error {
	if len(v.attached) > 0 && singleNode(r.GetVolumeCapability()) {
		return status.Error(codes.FailedPrecondition, "the volume is published to another node")
	}
	count := int64(0)
	for _, other := range d.volumes {
		if other.attached[r.GetNodeId()] != nil {
			count++
		}
	}
	if d.config.MaxVolumes > 0 && count >= d.config.MaxVolumes {
		return status.Error(codes.ResourceExhausted, "the node has as many volumes as it can")
	}
	return nil
}

func singleNode(c *csipb.VolumeCapability) bool {
	switch c.GetAccessMode().GetMode() {
	case csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
		csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csipb.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:
		return false
	}
	return true
}

// ControllerUnpublishVolume detaches a volume from a node, or from all. It fails while this node
// still uses the volume: a caller must not do that.
func (d *Driver) ControllerUnpublishVolume(
	_ context.Context, r *csipb.ControllerUnpublishVolumeRequest,
) (*csipb.ControllerUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.volumes[r.GetVolumeId()]
	if v == nil {
		return &csipb.ControllerUnpublishVolumeResponse{}, nil
	}
	here := r.GetNodeId() == "" || r.GetNodeId() == d.config.NodeID
	if here && (v.staged != nil || len(v.published) > 0) {
		return nil, status.Error(codes.FailedPrecondition, "the node still uses the volume")
	}
	if r.GetNodeId() == "" {
		clear(v.attached)
	}
	delete(v.attached, r.GetNodeId())
	return &csipb.ControllerUnpublishVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms everything.
func (d *Driver) ValidateVolumeCapabilities(
	_ context.Context, r *csipb.ValidateVolumeCapabilitiesRequest,
) (*csipb.ValidateVolumeCapabilitiesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.find(r.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csipb.ValidateVolumeCapabilitiesResponse{Confirmed: &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// ListVolumes returns one page; a token is the number of volumes before it.
func (d *Driver) ListVolumes(_ context.Context, r *csipb.ListVolumesRequest) (*csipb.ListVolumesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ids := slices.Sorted(maps.Keys(d.volumes))
	start := 0
	if token := r.GetStartingToken(); token != "" {
		n, err := strconv.Atoi(token)
		if err != nil || n < 0 || n > len(ids) {
			return nil, status.Errorf(codes.Aborted, "there is no page %q", token)
		}
		start = n
	}
	end := len(ids)
	if most := int(r.GetMaxEntries()); most > 0 {
		end = min(end, start+most)
	}
	out := &csipb.ListVolumesResponse{}
	for _, id := range ids[start:end] {
		out.Entries = append(out.Entries, &csipb.ListVolumesResponse_Entry{
			Volume: d.answer(d.volumes[id]),
			Status: &csipb.ListVolumesResponse_VolumeStatus{PublishedNodeIds: slices.Sorted(maps.Keys(d.volumes[id].attached))},
		})
	}
	if end < len(ids) {
		out.NextToken = strconv.Itoa(end)
	}
	return out, nil
}

// GetCapacity returns the free capacity.
func (d *Driver) GetCapacity(context.Context, *csipb.GetCapacityRequest) (*csipb.GetCapacityResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.config.Capacity == 0 {
		return &csipb.GetCapacityResponse{AvailableCapacity: maxBytes}, nil
	}
	return &csipb.GetCapacityResponse{AvailableCapacity: d.config.Capacity - d.used()}, nil
}

// ControllerExpandVolume makes a volume larger, never smaller.
func (d *Driver) ControllerExpandVolume(
	_ context.Context, r *csipb.ControllerExpandVolumeRequest,
) (*csipb.ControllerExpandVolumeResponse, error) {
	bytes, err := sizeFor(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	inUse := v.staged != nil || len(v.published) > 0
	if inUse && !d.config.Plugin.OnlineExpansion {
		return nil, status.Error(codes.FailedPrecondition, "the volume is in use")
	}
	if d.config.Capacity > 0 && d.used()-v.bytes+bytes > d.config.Capacity {
		return nil, status.Error(codes.ResourceExhausted, "no room is left")
	}
	v.bytes = max(v.bytes, bytes)
	return &csipb.ControllerExpandVolumeResponse{CapacityBytes: v.bytes, NodeExpansionRequired: d.config.Node.Expand}, nil
}

// ControllerGetVolume returns a volume and where it is published.
func (d *Driver) ControllerGetVolume(
	_ context.Context, r *csipb.ControllerGetVolumeRequest,
) (*csipb.ControllerGetVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csipb.ControllerGetVolumeResponse{Volume: d.answer(v), Status: &csipb.ControllerGetVolumeResponse_VolumeStatus{
		PublishedNodeIds: slices.Sorted(maps.Keys(v.attached)),
	}}, nil
}

// ControllerModifyVolume stores the parameters.
func (d *Driver) ControllerModifyVolume(
	_ context.Context, r *csipb.ControllerModifyVolumeRequest,
) (*csipb.ControllerModifyVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	v.mutable = r.GetMutableParameters()
	return &csipb.ControllerModifyVolumeResponse{}, nil
}
