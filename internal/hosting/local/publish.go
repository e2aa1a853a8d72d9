package local

import (
	"context"
	"errors"
	"os"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/mount"
)

// checkPath is mount.CheckPath with a gRPC error.
func checkPath(what, path string) error {
	if err := mount.CheckPath(what, path); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// NodePublishVolume bind-mounts the staged volume at a target path.
func (n *node) NodePublishVolume(
	ctx context.Context, r *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	if err := checkPublish(r); err != nil {
		return nil, err
	}
	v, release, err := n.mine(ctx, r.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	defer release()
	device, err := n.pool.loops.Find(n.pool.image(volumes, v.ID))
	if err != nil {
		return nil, failure(err)
	}
	if device == "" {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not staged; stage it first", v.ID)
	}
	p := publication{
		pool: n.pool, v: v, device: device,
		staging: r.GetStagingTargetPath(), target: r.GetTargetPath(), source: r.GetStagingTargetPath(),
		block: r.GetVolumeCapability().GetBlock() != nil, mode: r.GetVolumeCapability().GetAccessMode().GetMode(),
	}
	if p.block {
		p.source = device
	}
	p.readOnly = r.GetReadonly() || p.mode == csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	if err := p.make(); err != nil {
		return nil, failure(err)
	}
	return &csipb.NodePublishVolumeResponse{}, nil
}

func checkPublish(r *csipb.NodePublishVolumeRequest) error {
	if err := checkPath("target path", r.GetTargetPath()); err != nil {
		return err
	}
	if r.GetStagingTargetPath() == "" {
		return status.Error(codes.FailedPrecondition, "no staging path: the volume has to be staged first")
	}
	if err := checkPath("staging path", r.GetStagingTargetPath()); err != nil {
		return err
	}
	_, err := checkCapabilities([]*csipb.VolumeCapability{r.GetVolumeCapability()})
	return err
}

// publication is one bind mount of a staged volume, which is locked.
type publication struct {
	pool                            *pool
	v                               record
	device, source, staging, target string
	block, readOnly                 bool
	mode                            csipb.VolumeCapability_AccessMode_Mode
}

// make bind-mounts the volume at the target. It removes what it has created if it fails.
func (p publication) make() error {
	there, err := p.exists()
	if err != nil || there {
		return err
	}
	if err := p.allowed(); err != nil {
		return err
	}
	var made bool
	if p.block {
		if err := setReadOnly(p.device, p.readOnly); err != nil {
			return err
		}
		made, err = mount.MakeFile(p.target)
	} else {
		made, err = mount.MakeDir(p.target)
	}
	if err == nil && !made {
		err = p.nothingHidden()
	}
	if err == nil {
		err = mount.Bind(p.source, p.target, mount.ReadOnlyIf(p.readOnly))
	}
	if err != nil && made {
		err = errors.Join(err, p.pool.mounts.Remove(p.target))
	}
	return err
}

// nothingHidden refuses a target with content: the mount would hide it, and the target could not be
// removed afterwards.
func (p publication) nothingHidden() error {
	info, err := os.Lstat(p.target)
	if err != nil {
		return err
	}
	empty := info.Mode().IsRegular() && info.Size() == 0
	if !p.block {
		entries, err := os.ReadDir(p.target)
		empty = err == nil && len(entries) == 0
	}
	if !empty {
		return status.Errorf(codes.FailedPrecondition, "volume %s: %s is neither new nor empty; remove it first",
			p.v.ID, p.target)
	}
	return nil
}

// exists says whether the volume is mounted at the target already, as requested.
func (p publication) exists() (bool, error) {
	at, mounted, err := p.pool.mounts.Look(p.target)
	if err != nil || !mounted {
		return false, err
	}
	if p.target == p.staging || !shows(at, p.device) || p.block != (at.Source != p.device) {
		return false, status.Errorf(codes.FailedPrecondition, "volume %s: something else is at %s; unmount that first",
			p.v.ID, p.target)
	}
	staged, _, err := p.pool.mounts.Look(p.staging)
	if err != nil {
		return false, err
	}
	// A volume that is staged read-only is read-only at all its targets.
	if at.ReadOnly != (p.readOnly || !p.block && staged.ReadOnly) {
		return false, status.Errorf(codes.AlreadyExists, "volume %s is at %s already, read-only %t; unpublish it first",
			p.v.ID, p.target, at.ReadOnly)
	}
	return true, nil
}

// allowed refuses a mount that would show nothing, or that violates a guarantee given to another target.
func (p publication) allowed() error {
	if alone := p.mode == csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER; alone || p.block {
		other, err := p.pool.shownAt(p.device, p.staging, p.target)
		switch {
		case err != nil:
			return err
		case other != "" && alone:
			return status.Errorf(codes.FailedPrecondition, "volume %s has its single writer at %s; unpublish it there first",
				p.v.ID, other)
		case p.block:
			return p.blockAllowed(other)
		}
	}
	at, mounted, err := p.pool.mounts.Look(p.staging)
	if err != nil {
		return err
	}
	// A bind mount of an empty staging directory would look like an empty volume.
	if !mounted || at.Source != p.device {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not mounted at %s; stage it first", p.v.ID, p.staging)
	}
	return nil
}

// blockAllowed refuses the raw device of a mounted filesystem, and a device that should be writable
// at one target and read-only at another.
func (p publication) blockAllowed(other string) error {
	at, err := p.pool.mountedAt(p.device)
	if err != nil {
		return err
	}
	if at != "" {
		return status.Errorf(codes.FailedPrecondition,
			"volume %s is mounted as a filesystem at %s; unstage it first", p.v.ID, at)
	}
	if other == "" {
		return nil
	}
	is, err := readOnly(p.device)
	if err == nil && is != p.readOnly {
		err = status.Errorf(codes.FailedPrecondition,
			"volume %s is a raw device at %s already, read-only %t, and cannot be otherwise at a second target",
			p.v.ID, other, is)
	}
	return err
}

// NodeUnpublishVolume undoes NodePublishVolume.
func (n *node) NodeUnpublishVolume(
	ctx context.Context, r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	if err := checkPath("target path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	v, release, err := n.pool.hold(ctx, volumes, r.GetVolumeId(), unix.LOCK_EX, holdLimit)
	if err != nil {
		return nil, failure(err)
	}
	defer release()
	err = n.unmount(v, r.GetTargetPath())
	if err == nil {
		err = n.pool.mounts.Remove(r.GetTargetPath())
	}
	if err != nil {
		return nil, failure(err)
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}
