package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
)

// NodeGetVolumeHealth reports damage in the pool, and errors that the kernel has found in a mounted ext4.
func (n *node) NodeGetVolumeHealth(
	_ context.Context, r *csipb.NodeGetVolumeHealthRequest,
) (*csipb.NodeGetVolumeHealthResponse, error) {
	out := &csipb.VolumeHealth{VolumeId: r.GetVolumeId()}
	say := func(kind csipb.VolumeHealthErrorType, reason, message string) {
		out.HealthStatuses = append(out.HealthStatuses,
			&csipb.VolumeHealth_VolumeHealthEntry{Status: kind, Reason: reason, Message: message})
	}
	id := r.GetVolumeId()
	v, err := n.pool.get(volumes, id)
	switch {
	case errors.Is(err, errDamaged):
		mounted, unread := n.pool.mountedAtOne(r.GetVolumePublishPath(), r.GetStagingTargetPath())
		if unread != nil {
			return nil, failure(unread)
		}
		if mounted {
			say(csipb.VolumeHealthErrorType_DEGRADED, "VolumeDamaged", fmt.Sprintf("files of the volume are damaged or gone "+
				"in %s: restore them, or copy what the volume holds while it is mounted", n.pool.path(volumes, id)))
		} else {
			say(csipb.VolumeHealthErrorType_INACCESSIBLE, "VolumeDamaged", err.Error())
		}
	case err != nil:
		return nil, failure(err)
	default:
		found, err := n.filesystemErrors(v)
		if err != nil {
			return nil, failure(err)
		}
		if found {
			say(csipb.VolumeHealthErrorType_DEGRADED, "FilesystemErrors", "the kernel has found errors in the filesystem: "+
				"see its log; the filesystem is checked when it is staged the next time")
		}
	}
	return &csipb.NodeGetVolumeHealthResponse{VolumeHealth: out}, nil
}

// mountedAtOne says whether something is mounted at one of the paths.
func (p *pool) mountedAtOne(paths ...string) (bool, error) {
	for _, path := range paths {
		if path == "" {
			continue
		}
		if _, mounted, err := p.mounts.At(path); mounted || err != nil {
			return mounted, err
		}
	}
	return false, nil
}

// filesystemErrors says whether the kernel has found errors in a volume's ext4 since it was last repaired; not if it is
// not mounted, or another filesystem.
func (n *node) filesystemErrors(v record) (found bool, err error) {
	device, err := n.pool.loops.Find(n.pool.image(volumes, v.ID))
	if err != nil || device == "" {
		return false, err
	}
	text, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "errors_count"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && strings.TrimSpace(string(text)) != "0", err
}

// NodeGetStorageHealth reports a pool that is gone, not writable, or full.
func (n *node) NodeGetStorageHealth(
	context.Context, *csipb.NodeGetStorageHealthRequest,
) (*csipb.NodeGetStorageHealthResponse, error) {
	out := &csipb.NodeGetStorageHealthResponse{}
	if kind, reason, message := n.pool.ailment(); reason != "" {
		out.BackendHealth = append(out.BackendHealth, &csipb.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: kind, Reason: reason, Message: message,
		})
	}
	return out, nil
}

// ailment returns what is wrong with the pool as a whole; its reason is empty if it is healthy.
func (p *pool) ailment() (kind csipb.StorageHealthErrorType, reason, message string) {
	var about struct {
		ID string `json:"id"`
	}
	var disk unix.Statfs_t
	err := durable.ReadJSON(filepath.Join(p.dir, "pool.json"), maxSmall, &about)
	if err == nil {
		err = unix.Statfs(p.dir, &disk)
	}
	switch {
	case err != nil:
		return csipb.StorageHealthErrorType_STORAGE_UNREACHABLE, "PoolUnreadable", err.Error()
	case about.ID != p.id:
		return csipb.StorageHealthErrorType_STORAGE_UNREACHABLE, "PoolReplaced",
			fmt.Sprintf("another pool is at %s than when the driver was started", p.dir)
	case disk.Flags&unix.ST_RDONLY != 0:
		return csipb.StorageHealthErrorType_STORAGE_DEGRADED, "PoolReadOnly",
			"the filesystem of the pool " + p.dir + " cannot be written"
	case disk.Bavail == 0:
		return csipb.StorageHealthErrorType_STORAGE_DEGRADED, "PoolFull",
			"the filesystem of the pool " + p.dir + " is full: what is written to volumes may be lost"
	}
	return 0, "", ""
}
