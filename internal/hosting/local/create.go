package local

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

const (
	defaultSize = 1 << 30
	// sizeStep is the unit of sizes in bytes: a filesystem cannot use less.
	sizeStep  = 1 << 20
	defaultFS = "ext4"
	maxName   = 128
	// reserved is the prefix of parameters that describe the claim, not the volume.
	reserved = "csi.storage.k8s.io/"
)

// controller is the CSI controller service.
type controller struct {
	csipb.UnimplementedControllerServer
	pool *pool
	// keep and log are as in Options.
	keep int64
	log  *slog.Logger
}

// CreateVolume creates a volume, or returns the one that an equal call has created, even if its
// source was deleted since.
func (c *controller) CreateVolume(
	ctx context.Context, r *csipb.CreateVolumeRequest,
) (*csipb.CreateVolumeResponse, error) {
	if err := checkName(r.GetName()); err != nil {
		return nil, err
	}
	if err := checkParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	if _, _, err := attributes(r.GetMutableParameters()); err != nil {
		return nil, err
	}
	fsType, err := checkCapabilities(r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	if err := c.checkTopology(r.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}
	id := volumes.idOf(r.GetName())
	existing, err := c.pool.get(volumes, id)
	switch {
	case err == nil:
		return c.created(existing, r)
	case !errors.Is(err, errMissing):
		return nil, failure(err)
	}
	made, err := c.create(ctx, id, fsType, r)
	if err != nil {
		return nil, failure(err)
	}
	return c.created(made, r)
}

// create creates a new volume while its source is locked.
func (c *controller) create(ctx context.Context, id, fsType string, r *csipb.CreateVolumeRequest) (record, error) {
	source, release, err := c.source(ctx, r.GetVolumeContentSource())
	if err != nil {
		return source, err
	}
	defer release()
	size, err := c.size(r.GetCapacityRange(), fsType, source)
	if err != nil {
		return source, err
	}
	if err := c.checkSpare(); err != nil {
		return source, err
	}
	want := record{ID: id, Name: r.GetName(), Size: size, Source: source.ID, Created: time.Now().UnixNano()}
	if want.Preallocated, _, err = attributes(r.GetMutableParameters()); err != nil {
		return source, err
	}
	return c.pool.add(ctx, volumes, want, func(image *os.File) error {
		err := c.fill(ctx, image, source)
		if err == nil && want.Preallocated {
			err = c.pool.reserve(image, size, c.keep)
		}
		if err != nil {
			return err
		}
		return distinguish(ctx, image.Name(), fsType)
	})
}

// created returns the answer for an existing volume, unless the request does not match it.
func (c *controller) created(v record, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	_, source := sourceOf(r.GetVolumeContentSource())
	want := r.GetCapacityRange()
	if v.Size < want.GetRequiredBytes() || want.GetLimitBytes() > 0 && v.Size > want.GetLimitBytes() ||
		v.Source != source {
		return nil, status.Errorf(codes.AlreadyExists,
			"volume %s exists with %d bytes and source %q; delete it first or choose another name", v.ID, v.Size, v.Source)
	}
	out := c.describe(v)
	out.ContentSource = r.GetVolumeContentSource()
	return &csipb.CreateVolumeResponse{Volume: out}, nil
}

func (c *controller) describe(v record) *csipb.Volume {
	return &csipb.Volume{VolumeId: v.ID, CapacityBytes: v.Size, AccessibleTopology: []*csipb.Topology{c.pool.topology()}}
}

// topology returns the segment of all nodes that can use the pool.
func (p *pool) topology() *csipb.Topology {
	return &csipb.Topology{Segments: map[string]string{volume.TopologyPool: p.id}}
}

func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return status.Errorf(codes.InvalidArgument, "name %.40q of %d bytes, want 1 to %d", name, len(name), maxName)
	}
	return nil
}

// checkParameters refuses unknown parameters: a misspelt one in a class must not be ignored silently.
func checkParameters(all map[string]string) error {
	for key := range all {
		// The older key of the filesystem type is passed as a parameter, too (S1-026); the capability counts.
		if !strings.HasPrefix(key, reserved) && !strings.EqualFold(key, "fstype") {
			return status.Errorf(codes.InvalidArgument,
				"parameter %.128q is not known; this driver has none, remove it from the class", key)
		}
	}
	return nil
}

// checkCapabilities refuses capabilities that files of one host cannot have, and returns the
// filesystem's type; "" for raw block.
func checkCapabilities(all []*csipb.VolumeCapability) (string, error) {
	if len(all) == 0 {
		return "", status.Error(codes.InvalidArgument, "no volume capability")
	}
	fsType := ""
	for _, c := range all {
		switch c.GetAccessMode().GetMode() {
		case csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
			csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
			csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		default:
			return "", status.Errorf(codes.InvalidArgument,
				"access mode %s: a local volume is on one node at a time; ask for ReadWriteOnce or ReadWriteOncePod",
				c.GetAccessMode().GetMode())
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
				return "", status.Errorf(codes.InvalidArgument,
					"filesystem type %.40q is not supported; supported are ext4, xfs and btrfs", fsType)
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
	return status.Errorf(codes.ResourceExhausted,
		"this driver has pool %s only, which is not among the requested ones", c.pool.id)
}

// sourceOf returns the kind and the id of a source; "" if there is none.
func sourceOf(s *csipb.VolumeContentSource) (kind, string) {
	if s.GetSnapshot() != nil {
		return snapshots, s.GetSnapshot().GetSnapshotId()
	}
	return volumes, s.GetVolume().GetVolumeId()
}

// source locks the volume or snapshot that the new volume is a copy of. A volume is locked
// exclusively, so that it is not mounted, expanded or frozen a second time while it is copied.
func (c *controller) source(ctx context.Context, s *csipb.VolumeContentSource) (record, func(), error) {
	if s == nil {
		return record{}, func() {}, nil
	}
	if s.GetSnapshot() == nil && s.GetVolume() == nil {
		return record{}, nil, status.Error(codes.InvalidArgument, "content source is neither a snapshot nor a volume")
	}
	k, id := sourceOf(s)
	how := unix.LOCK_EX
	if k == snapshots {
		how = unix.LOCK_SH
	}
	return c.pool.hold(ctx, k, id, how, holdLimit)
}

// size chooses a size that the filesystem, the source and the disk allow within the requested range.
func (c *controller) size(r *csipb.CapacityRange, fsType string, source record) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if err := checkRange(r); err != nil {
		return 0, err
	}
	size := cmp.Or(required, min(defaultSize, orNone(limit)/sizeStep*sizeStep))
	if required < source.Size && required > 0 {
		return 0, status.Errorf(codes.OutOfRange, "%d bytes are less than the %d of source %s; ask for as many", required,
			source.Size, source.ID)
	}
	// A volume of zero bytes would be of no use.
	size = max(size, source.Size, sizeStep)
	if fsType != "" {
		smallest, err := smallestFS(fsType)
		if err != nil {
			return 0, failure(err)
		}
		size = max(size, smallest)
	}
	if size > math.MaxInt64-sizeStep {
		return 0, status.Errorf(codes.OutOfRange, "%d bytes are not possible; ask for less", size)
	}
	size = (size + sizeStep - 1) / sizeStep * sizeStep
	if size > orNone(limit) {
		return 0, status.Errorf(codes.OutOfRange,
			"the least size is %d bytes, more than the limit of %d; raise the limit", size, limit)
	}
	return size, c.checkRoom(size)
}

// smallestFS returns the smallest size of a filesystem that can be expanded: the kernel does not
// resize btrfs to less than 256 MiB, not even to the size that it has.
func smallestFS(fsType string) (int64, error) {
	smallest, err := mount.SmallestFS(fsType)
	if fsType == "btrfs" {
		smallest = max(smallest, 256<<20)
	}
	return smallest, err
}

func checkRange(r *csipb.CapacityRange) error {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required < 0 || limit < 0 || orNone(limit) < required {
		return status.Errorf(codes.OutOfRange, "no possible size is between %d and %d bytes", required, limit)
	}
	return nil
}

// orNone returns a limit, or the largest number for 0, which means no limit.
func orNone(limit int64) int64 { return cmp.Or(limit, math.MaxInt64) }

// checkRoom refuses a size that exceeds the whole disk. Images are sparse, so that the free space says little.
func (c *controller) checkRoom(size int64) error {
	usage, err := mount.Stat(c.pool.dir)
	if err != nil {
		return failure(err)
	}
	if size > usage.Total {
		return status.Errorf(codes.OutOfRange, "%d bytes are more than the disk of pool %s has (%d); ask for less", size,
			c.pool.dir, usage.Total)
	}
	return nil
}

// checkSpare refuses new volumes and snapshots while the free space of the disk is reserved for
// others. Existing ones may still be expanded and deleted.
func (c *controller) checkSpare() error {
	usage, err := mount.Stat(c.pool.dir)
	if err != nil {
		return failure(err)
	}
	if c.keep > 0 && usage.Available <= c.keep {
		return status.Errorf(codes.ResourceExhausted, "the disk of pool %s has %d MiB free, and %d MiB of it are kept for "+
			"the control plane; delete volumes or snapshots, make room on it, or mount another disk at the pool",
			c.pool.dir, usage.Available>>20, c.keep>>20)
	}
	return nil
}

// fill copies a locked source as of one moment.
func (c *controller) fill(ctx context.Context, image *os.File, source record) error {
	switch {
	case source.ID == "":
		return nil
	case snapshots.checkID(source.ID) == nil:
		return copyImage(ctx, c.pool.image(snapshots, source.ID), image, c.log)
	case c.pool.formatting(source.ID):
		return nil // it was never mounted, so it is empty
	default:
		from := c.pool.image(volumes, source.ID)
		return c.pool.frozen(from, func() error { return copyImage(ctx, from, image, c.log) })
	}
}

// DeleteVolume deletes a volume that is not in use.
func (c *controller) DeleteVolume(
	ctx context.Context, r *csipb.DeleteVolumeRequest,
) (*csipb.DeleteVolumeResponse, error) {
	_, release, err := c.pool.hold(ctx, volumes, r.GetVolumeId(), unix.LOCK_EX, holdLimit)
	if err == nil {
		defer release()
		err = c.pool.remove(volumes, r.GetVolumeId(), func(v record) error {
			if v.Node != "" {
				return publishedTo(v)
			}
			// The volume is published to no node, so its device, if any, was left by a killed driver.
			return c.pool.detach(ctx, v.ID)
		})
	}
	if err != nil && !errors.Is(err, errMissing) && !errors.Is(err, errID) {
		return nil, failure(err)
	}
	return &csipb.DeleteVolumeResponse{}, nil
}

// ControllerExpandVolume expands a volume; the node expands the device and the filesystem.
func (c *controller) ControllerExpandVolume(
	ctx context.Context, r *csipb.ControllerExpandVolumeRequest,
) (*csipb.ControllerExpandVolumeResponse, error) {
	v, release, err := c.pool.hold(ctx, volumes, r.GetVolumeId(), unix.LOCK_EX, holdLimit)
	if err != nil {
		return nil, failure(err)
	}
	defer release()
	if err := checkRange(r.GetCapacityRange()); err != nil {
		return nil, err
	}
	size := v.Size
	if r.GetCapacityRange().GetRequiredBytes() > size {
		if size, err = c.size(r.GetCapacityRange(), "", v); err != nil {
			return nil, err
		}
	}
	if limit := r.GetCapacityRange().GetLimitBytes(); size > orNone(limit) {
		return nil, status.Errorf(codes.OutOfRange, "volume %s has %d bytes, more than the limit of %d; volumes never shrink",
			v.ID, size, limit)
	}
	if v.Preallocated {
		if err := c.pool.allocate(v.ID, size, c.keep); err != nil {
			return nil, failure(err)
		}
	}
	if err := c.pool.grow(v.ID, size); err != nil {
		return nil, failure(err)
	}
	return &csipb.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
}
