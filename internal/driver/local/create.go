package local

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

const (
	defaultSize = 1 << 30
	// sizeStep is the unit of sizes: a filesystem cannot use less.
	sizeStep  = 1 << 20
	defaultFS = "ext4"
	maxName   = 128
)

// controller is the CSI controller service.
type controller struct {
	csipb.UnimplementedControllerServer
	pool *pool
}

// CreateVolume makes a volume, or finds the one that an equal call has made.
func (c *controller) CreateVolume(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	if r.GetName() == "" || len(r.GetName()) > maxName {
		return nil, status.Errorf(codes.InvalidArgument, "name of %d bytes, want 1 to %d", len(r.GetName()), maxName)
	}
	fsType, err := checkCapabilities(r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	if err := c.checkTopology(r.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}
	source, err := c.source(r.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	id := volumes.idOf(r.GetName())
	if there, err := c.pool.get(volumes, id); err == nil {
		return c.created(there, r, source)
	}
	size, err := c.size(r.GetCapacityRange(), fsType, source)
	if err != nil {
		return nil, err
	}
	want := record{ID: id, Name: r.GetName(), Size: size, Source: source.ID, Created: time.Now().UnixNano()}
	made, err := c.pool.add(volumes, want, func(image *os.File) error { return c.fill(ctx, image, source) })
	if err != nil {
		return nil, failure(err)
	}
	return c.created(made, r, source)
}

// created answers with a volume that exists, unless it is not what was asked
// for.
func (c *controller) created(v record, r *csipb.CreateVolumeRequest, source record) (*csipb.CreateVolumeResponse, error) {
	want := r.GetCapacityRange()
	if v.Size < want.GetRequiredBytes() || want.GetLimitBytes() > 0 && v.Size > want.GetLimitBytes() || v.Source != source.ID {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s exists with %d bytes and source %q", v.ID, v.Size, v.Source)
	}
	out := c.describe(v)
	out.ContentSource = r.GetVolumeContentSource()
	return &csipb.CreateVolumeResponse{Volume: out}, nil
}

func (c *controller) describe(v record) *csipb.Volume {
	return &csipb.Volume{VolumeId: v.ID, CapacityBytes: v.Size, AccessibleTopology: []*csipb.Topology{c.pool.topology()}}
}

// topology is the segment of all nodes that reach the pool.
func (p *pool) topology() *csipb.Topology {
	return &csipb.Topology{Segments: map[string]string{volume.TopologyPool: p.id}}
}

// checkCapabilities refuses what one host's files cannot be, and returns the
// filesystem's type; "" for raw block.
func checkCapabilities(all []*csipb.VolumeCapability) (string, error) {
	if len(all) == 0 {
		return "", status.Error(codes.InvalidArgument, "no volume capability")
	}
	fsType := ""
	for _, c := range all {
		switch c.GetAccessMode().GetMode() {
		case csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
			csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		default:
			return "", status.Errorf(codes.InvalidArgument, "access mode %s: a local volume is on one node at a time", c.GetAccessMode().GetMode())
		}
		switch {
		case c.GetBlock() != nil:
		case c.GetMount() == nil:
			return "", status.Error(codes.InvalidArgument, "capability is neither mount nor block")
		default:
			if fsType = c.GetMount().GetFsType(); fsType == "" {
				fsType = defaultFS
			}
			if _, err := mount.SmallestFS(fsType); err != nil {
				return "", status.Error(codes.InvalidArgument, err.Error())
			}
		}
	}
	return fsType, nil
}

func (c *controller) checkTopology(r *csipb.TopologyRequirement) error {
	if len(r.GetRequisite()) == 0 {
		return nil
	}
	for _, t := range r.GetRequisite() {
		if t.GetSegments()[volume.TopologyPool] == c.pool.id {
			return nil
		}
	}
	return status.Errorf(codes.ResourceExhausted, "this driver makes volumes in pool %s only, which is not among the requested ones", c.pool.id)
}

// source returns the volume or snapshot that the new volume starts as.
func (c *controller) source(s *csipb.VolumeContentSource) (record, error) {
	var r record
	var err error
	switch {
	case s == nil:
	case s.GetSnapshot() != nil:
		r, err = c.pool.get(snapshots, s.GetSnapshot().GetSnapshotId())
	case s.GetVolume() != nil:
		r, err = c.pool.get(volumes, s.GetVolume().GetVolumeId())
	default:
		err = errors.New("content source is neither a snapshot nor a volume")
	}
	switch {
	case errors.Is(err, errMissing), errors.Is(err, errID):
		return r, status.Error(codes.NotFound, err.Error())
	case err != nil:
		return r, status.Error(codes.InvalidArgument, err.Error())
	}
	return r, nil
}

// size chooses a size within the range that the filesystem and the source can
// have and the pool's disk could ever hold.
func (c *controller) size(r *csipb.CapacityRange, fsType string, source record) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required < 0 || limit < 0 || orNone(limit) < required {
		return 0, status.Errorf(codes.OutOfRange, "between %d and %d bytes there is no size", required, limit)
	}
	size := required
	if size == 0 {
		size = min(defaultSize, orNone(limit))
	}
	if required < source.Size && required > 0 {
		return 0, status.Errorf(codes.OutOfRange, "%d bytes are less than the source's %d", required, source.Size)
	}
	size = max(size, source.Size)
	if fsType != "" {
		smallest, err := mount.SmallestFS(fsType)
		if err != nil {
			return 0, status.Error(codes.InvalidArgument, err.Error())
		}
		size = max(size, smallest)
	}
	if size > math.MaxInt64-sizeStep {
		return 0, status.Errorf(codes.OutOfRange, "%d bytes cannot be had", size)
	}
	size = (size + sizeStep - 1) / sizeStep * sizeStep
	if size > orNone(limit) {
		return 0, status.Errorf(codes.OutOfRange, "the least size is %d bytes, more than the limit of %d", size, limit)
	}
	return size, c.checkRoom(size)
}

// orNone returns a limit as a number: 0 is no limit.
func orNone(limit int64) int64 {
	if limit == 0 {
		return math.MaxInt64
	}
	return limit
}

// checkRoom refuses what the pool's disk could not hold even if it were empty.
// Images are sparse, so that the free space says little.
func (c *controller) checkRoom(size int64) error {
	usage, err := mount.Stat(c.pool.dir)
	if err != nil {
		return failure(err)
	}
	if size > usage.Total {
		return status.Errorf(codes.OutOfRange, "%d bytes are more than the pool's disk has (%d)", size, usage.Total)
	}
	return nil
}

func (c *controller) fill(ctx context.Context, image *os.File, source record) error {
	switch {
	case source.ID == "":
		return nil
	case snapshots.checkID(source.ID) == nil:
		return copyImage(ctx, c.pool.image(snapshots, source.ID), image)
	default:
		from := c.pool.image(volumes, source.ID)
		return frozen(from, func() error { return copyImage(ctx, from, image) })
	}
}

// DeleteVolume deletes a volume that nobody uses.
func (c *controller) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume id")
	}
	err := c.pool.remove(volumes, r.GetVolumeId(), func(v record) error {
		if len(v.Nodes) > 0 {
			return status.Errorf(codes.FailedPrecondition, "volume %s is published to node %s", v.ID, v.Nodes[0])
		}
		device, err := mount.LoopFind(c.pool.image(volumes, v.ID))
		if err != nil {
			return err
		}
		if device != "" {
			return status.Errorf(codes.FailedPrecondition, "volume %s is in use as %s", v.ID, device)
		}
		return nil
	})
	if errors.Is(err, errMissing) || errors.Is(err, errID) {
		err = nil
	}
	if err != nil {
		return nil, failure(err)
	}
	return &csipb.DeleteVolumeResponse{}, nil
}

// CreateSnapshot copies a volume as it is at one moment.
func (c *controller) CreateSnapshot(ctx context.Context, r *csipb.CreateSnapshotRequest) (*csipb.CreateSnapshotResponse, error) {
	if r.GetName() == "" || r.GetSourceVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no name or no source volume")
	}
	v, err := c.pool.get(volumes, r.GetSourceVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	id := snapshots.idOf(r.GetName())
	made, err := c.pool.get(snapshots, id)
	if errors.Is(err, errMissing) {
		want := record{ID: id, Name: r.GetName(), Size: v.Size, Source: v.ID, Created: time.Now().UnixNano()}
		made, err = c.pool.add(snapshots, want, func(image *os.File) error { return c.fill(ctx, image, v) })
	}
	if err != nil {
		return nil, failure(err)
	}
	if made.Source != v.ID {
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %s exists of volume %s", made.ID, made.Source)
	}
	return &csipb.CreateSnapshotResponse{Snapshot: describeSnapshot(made)}, nil
}

func describeSnapshot(s record) *csipb.Snapshot {
	return &csipb.Snapshot{SnapshotId: s.ID, SourceVolumeId: s.Source, SizeBytes: s.Size, ReadyToUse: true, CreationTime: timestamppb.New(time.Unix(0, s.Created))}
}

// DeleteSnapshot deletes a snapshot; volumes made from it live on.
func (c *controller) DeleteSnapshot(_ context.Context, r *csipb.DeleteSnapshotRequest) (*csipb.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no snapshot id")
	}
	err := c.pool.remove(snapshots, r.GetSnapshotId(), func(record) error { return nil })
	if err != nil && !errors.Is(err, errMissing) && !errors.Is(err, errID) {
		return nil, failure(err)
	}
	return &csipb.DeleteSnapshotResponse{}, nil
}

// ControllerExpandVolume makes a volume larger; the node fits the device and
// the filesystem to it.
func (c *controller) ControllerExpandVolume(_ context.Context, r *csipb.ControllerExpandVolumeRequest) (*csipb.ControllerExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "no volume id or no capacity range")
	}
	v, err := c.pool.change(volumes, r.GetVolumeId(), func(v *record) error {
		if v.Size >= r.GetCapacityRange().GetRequiredBytes() {
			return nil
		}
		size, err := c.size(r.GetCapacityRange(), "", *v)
		if err != nil {
			return err
		}
		// The file grows before the record says so: a driver killed in
		// between finds a larger file, which does no harm.
		if err := os.Truncate(c.pool.image(volumes, v.ID), size); err != nil {
			return fmt.Errorf("grow image: %w", err)
		}
		v.Size = size
		return nil
	})
	if err != nil {
		return nil, failure(err)
	}
	return &csipb.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: true}, nil
}

// failure gives an error of the pool or the kernel its gRPC code.
func failure(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Internal
	for is, c := range map[error]codes.Code{
		errMissing: codes.NotFound, errID: codes.NotFound, mount.ErrUnknownFS: codes.InvalidArgument,
		mount.ErrNotPlain: codes.InvalidArgument, mount.ErrNotPermitted: codes.FailedPrecondition, mount.ErrNoLoop: codes.ResourceExhausted,
		mount.ErrGrowLater: codes.FailedPrecondition,
		context.Canceled:   codes.Canceled, context.DeadlineExceeded: codes.DeadlineExceeded,
	} {
		if errors.Is(err, is) {
			code = c
		}
	}
	return status.Error(code, err.Error())
}

// page cuts one page out of entries; tokens are positions.
func page[T any](entries []T, token string, most int32) ([]T, string, error) {
	start := 0
	if token != "" {
		if _, err := fmt.Sscanf(token, "%d", &start); err != nil || start < 0 || start > len(entries) {
			return nil, "", status.Errorf(codes.Aborted, "starting token %.40q is not one of ours", token)
		}
	}
	if most < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "%d entries cannot be had", most)
	}
	end := len(entries)
	if most > 0 {
		end = min(end, start+int(most))
	}
	next := ""
	if end < len(entries) {
		next = fmt.Sprint(end)
	}
	return slices.Clone(entries[start:end]), next, nil
}
