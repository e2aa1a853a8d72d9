package hostile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetCapabilities returns the capabilities of the node service.
func (s *side) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for can, does := range map[csipb.NodeServiceCapability_RPC_Type]bool{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: s.d.stages,
		csipb.NodeServiceCapability_RPC_EXPAND_VOLUME:        s.d.grows && s.d.growsNodes,
	} {
		if does {
			rpc := &csipb.NodeServiceCapability_RPC{Type: can}
			out.Capabilities = append(out.Capabilities,
				&csipb.NodeServiceCapability{Type: &csipb.NodeServiceCapability_Rpc{Rpc: rpc}})
		}
	}
	return out, nil
}

// NodeStageVolume mounts a filesystem at the staging path, or only counts.
func (s *side) NodeStageVolume(
	_ context.Context, r *csipb.NodeStageVolumeRequest,
) (*csipb.NodeStageVolumeResponse, error) {
	v, path := s.d.disks[r.GetVolumeId()], r.GetStagingTargetPath()
	switch {
	case !s.d.stages:
		return nil, s.d.fault("stage of %s by a driver that does not", r.GetVolumeId())
	case !v.loggedIn(s.place, r):
		return nil, s.d.fault("stage of %s at %s, which is not attached there, or not by %q", r.GetVolumeId(), s.place,
			r.GetPublishContext())
	case v.staged[s.place] == path:
		return &csipb.NodeStageVolumeResponse{}, nil
	case v.staged[s.place] != "":
		return nil, s.d.fault("stage of %s at %s and at %s", r.GetVolumeId(), v.staged[s.place], path)
	}
	if s.d.shown(v) {
		if err := tmpfs(path); err != nil {
			return nil, err
		}
	}
	v.staged[s.place] = path
	return &csipb.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume refuses while the volume is published.
func (s *side) NodeUnstageVolume(
	_ context.Context, r *csipb.NodeUnstageVolumeRequest,
) (*csipb.NodeUnstageVolumeResponse, error) {
	v, path := s.d.disks[r.GetVolumeId()], r.GetStagingTargetPath()
	switch {
	case v == nil || v.staged[s.place] == "":
		return &csipb.NodeUnstageVolumeResponse{}, nil
	case v.staged[s.place] != path:
		return nil, s.d.fault("unstage of %s from %s, it is at %s", r.GetVolumeId(), path, v.staged[s.place])
	case len(v.published[s.place]) > 0:
		return nil, s.d.fault("unstage of %s under %v", r.GetVolumeId(), v.published[s.place])
	}
	if s.d.shown(v) {
		if err := unmount(path); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	delete(v.staged, s.place)
	return &csipb.NodeUnstageVolumeResponse{}, nil
}

// unmount succeeds if nothing is mounted: another process may have unmounted.
func unmount(path string) error {
	//nolint:errorlint // a number
	if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

func tmpfs(path string) error {
	if err := unix.Mount("hostile", path, "tmpfs", 0, "size=64k"); err != nil {
		return status.Error(codes.Internal, "mount: "+err.Error())
	}
	return nil
}

// NodePublishVolume publishes a volume at a target, and creates it first if it is an inline volume.
func (s *side) NodePublishVolume(
	_ context.Context, r *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	id, path := r.GetVolumeId(), r.GetTargetPath()
	v := s.d.disks[id]
	switch {
	case inline(id):
		if r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] != "true" {
			return nil, s.d.fault("publish of %s, which is inline, with %v", id, r.GetVolumeContext())
		}
		if v == nil {
			v = newDisk()
		}
	case !v.loggedIn(s.place, r):
		return nil, s.d.fault("publish of %s at %s, which is not attached there, or not by %q", id, s.place,
			r.GetPublishContext())
	case v.staged[s.place] != r.GetStagingTargetPath() || s.d.stages && r.GetStagingTargetPath() == "":
		return nil, s.d.fault("publish of %s from %q, it is staged at %q", id, r.GetStagingTargetPath(), v.staged[s.place])
	}
	if v.published[s.place][path] {
		return &csipb.NodePublishVolumeResponse{}, nil
	}
	if err := s.show(v, r); err != nil {
		return nil, err
	}
	if v.published[s.place] == nil {
		v.published[s.place] = map[string]bool{}
	}
	v.published[s.place][path], s.d.disks[id] = true, v
	return &csipb.NodePublishVolumeResponse{}, nil
}

// show creates what a Pod finds at its target.
func (s *side) show(v *driverVolume, r *csipb.NodePublishVolumeRequest) error {
	path := r.GetTargetPath()
	if v.block {
		return s.showDevice(path)
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if !s.d.shown(v) || v.staged[s.place] == "" {
		return tmpfs(path)
	}
	return bind(r.GetStagingTargetPath(), path)
}

// showDevice creates a device node, or mounts one over a file. It is never opened.
func (s *side) showDevice(path string) error {
	device := path
	if !s.d.makesNodes {
		device = filepath.Join(s.dir, "device")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
	if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err != nil &&
		(s.d.makesNodes || !os.IsExist(err)) {
		return status.Error(codes.Internal, "make device: "+err.Error())
	}
	if s.d.makesNodes {
		return nil
	}
	return bind(device, path)
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return status.Error(codes.Internal, "bind: "+err.Error())
	}
	return nil
}

// NodeUnpublishVolume removes the target.
func (s *side) NodeUnpublishVolume(
	_ context.Context, r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	v, path := s.d.disks[r.GetVolumeId()], r.GetTargetPath()
	if v == nil || !v.published[s.place][path] {
		return &csipb.NodeUnpublishVolumeResponse{}, nil
	}
	if err := unmount(path); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	_ = os.Remove(path)
	delete(v.published[s.place], path)
	if inline(r.GetVolumeId()) {
		delete(s.d.disks, r.GetVolumeId())
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume expands the filesystem to the size of its volume.
func (s *side) NodeExpandVolume(
	ctx context.Context, r *csipb.NodeExpandVolumeRequest,
) (*csipb.NodeExpandVolumeResponse, error) {
	v, bytes := s.d.disks[r.GetVolumeId()], r.GetCapacityRange().GetRequiredBytes()
	if v == nil || !v.published[s.place][r.GetVolumePath()] || bytes > v.bytes {
		return nil, s.d.fault("growth of %s at %s to %d: %+v", r.GetVolumeId(), r.GetVolumePath(), bytes, v)
	}
	v.formatted = max(v.formatted, bytes)
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: said(ctx, v.formatted)}, nil
}
