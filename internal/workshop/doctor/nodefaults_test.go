package doctor

import (
	"errors"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/workshop/finding"
	"volplane.dev/volplane/internal/workshop/scratch"
)

func nodeFaults() map[string]fault {
	return map[string]fault{
		"published without being staged": {check: "publish-unstaged", spoil: spoils{
			"NodePublishVolume": instead(codes.FailedPrecondition, codes.OK),
		}, also: []string{"single-writer"}},
		"staged twice": {
			check: "stage-again", also: []string{"lost-answer", "same-at-once", "killed-stage"}, spoil: spoils{
				"NodeStageVolume": func(c *call) (proto.Message, error) {
					path := c.req.(*csipb.NodeStageVolumeRequest).GetStagingTargetPath()
					before := mounts(path)
					m, err := c.pass()
					if err == nil && before > 0 {
						_ = unix.Mount(path, path, "", unix.MS_BIND, "")
					}
					return m, err
				},
			},
		},
		"published twice": {
			check: "publish-again", also: afterwards("publish-conflict", "block"), spoil: spoils{
				"NodePublishVolume": func(c *call) (proto.Message, error) {
					path := c.req.(*csipb.NodePublishVolumeRequest).GetTargetPath()
					before := mounts(path)
					m, err := c.pass()
					if err == nil && before > 0 {
						_ = unix.Mount(path, path, "", unix.MS_BIND, "")
					}
					return m, err
				},
			},
		},
		"refused the second time": {check: "publish-again", also: afterwards(), spoil: spoils{
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.NodePublishVolumeRequest)
				if mounts(r.GetTargetPath()) > 0 && !r.Readonly && r.GetVolumeCapability().GetBlock() == nil {
					return nil, status.Error(codes.Internal, "it is mounted already")
				}
				return c.pass()
			},
		}},
	}
}

func publishFaults() map[string]fault {
	return map[string]fault{
		"nothing is published": {check: "publish", spoil: spoils{
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				m, err := c.pass()
				if err == nil && c.req.(*csipb.NodePublishVolumeRequest).GetVolumeCapability().GetBlock() == nil {
					_ = mount.Unmount(c.req.(*csipb.NodePublishVolumeRequest).GetTargetPath())
				}
				return m, err
			},
		}, also: afterwards("publish-again", "publish-conflict", "data", "two-targets", "read-only", "stats", "stats-path",
			"grown", "restore", "clone", "ten-at-once", "single-writer", "delete-published", "leftover-volumes")},
		"read-only takes writing away from others": {check: "publish-conflict", spoil: spoils{
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				m, err := c.pass()
				if status.Code(err) == codes.AlreadyExists {
					_ = unix.Mount("", c.req.(*csipb.NodePublishVolumeRequest).GetTargetPath(), "",
						unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
				}
				return m, err
			},
		}, also: []string{"publish-again", "data", "two-targets", "read-only"}},
		"an odd code where it is published": {check: "publish-conflict", level: finding.Warn, spoil: spoils{
			"NodePublishVolume": instead(codes.AlreadyExists, codes.Internal),
		}},
	}
}

func unpublishFaults() map[string]fault {
	return map[string]fault{
		"a target that stays": {check: "unpublish", also: []string{"block", "killed-unpublish"}, spoil: spoils{
			"NodeUnpublishVolume": func(c *call) (proto.Message, error) {
				m, err := c.pass()
				if err == nil {
					_ = os.WriteFile(c.req.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath(), nil, 0o600)
					// It is of the form that the next publication needs.
					_ = os.Remove(c.req.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath())
					_ = os.Mkdir(c.req.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath(), 0o700)
				}
				return m, err
			},
		}},
		"unpublished once only": {check: "unpublish-again", also: []string{
			"unknown-ids", "lost-answer", "killed-unpublish", "leftover-volumes",
		}, spoil: spoils{
			"NodeUnpublishVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.NodeUnpublishVolumeRequest)
				if path := r.GetTargetPath(); r.GetVolumeId() != "" && path != "" && mounts(path) == 0 {
					return nil, status.Error(codes.Internal, "it is not mounted")
				}
				return c.pass()
			},
		}},
		"nothing is unpublished": {check: "unpublish", spoil: spoils{
			"NodeUnpublishVolume": func(c *call) (proto.Message, error) {
				if c.req.(*csipb.NodeUnpublishVolumeRequest).GetVolumeId() == "" ||
					c.req.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath() == "" {
					return c.pass()
				}
				return &csipb.NodeUnpublishVolumeResponse{}, nil
			},
		}, also: afterwards("publish-again", "data", "two-targets", "read-only", "block", "restore", "clone", "stage",
			"unstage", "leftover-mounts", "leftover-volumes", "delete-published", "ten-at-once", "grown", "stats")},
	}
}

func unstageFaults() map[string]fault {
	return map[string]fault{
		"nothing is unstaged": {check: "unstage", spoil: spoils{
			"NodeUnstageVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.NodeUnstageVolumeRequest)
				if r.GetVolumeId() == "" || r.GetStagingTargetPath() == "" {
					return c.pass()
				}
				return &csipb.NodeUnstageVolumeResponse{}, nil
			},
		}, also: afterwards("delete-published", "grown", "restore", "clone", "ten-at-once", "leftover-mounts",
			"leftover-volumes")},
		"unstaged once only": {check: "unstage-again", also: []string{
			"unknown-ids", "lost-answer", "leftover-volumes",
		}, spoil: spoils{
			"NodeUnstageVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.NodeUnstageVolumeRequest)
				path := r.GetStagingTargetPath()
				if r.GetVolumeId() != "" && filepath.Base(path) == "globalmount" && mounts(path) == 0 &&
					!c.kept(filepath.Base(filepath.Dir(path))) {
					return nil, status.Error(codes.Internal, "it is not staged")
				}
				return c.pass()
			},
			"NodeStageVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.NodeStageVolumeRequest)
				if r.GetVolumeCapability().GetBlock() != nil {
					_ = c.keep(filepath.Base(filepath.Dir(r.GetStagingTargetPath())), "block")
				}
				return c.pass()
			},
		}},
	}
}

func useFaults() map[string]fault {
	return map[string]fault{
		"data goes with the unstage": {check: "data", also: []string{"restore", "clone", "grown"}, spoil: spoils{
			"NodeUnstageVolume": func(c *call) (proto.Message, error) {
				_ = os.Remove(filepath.Join(c.req.(*csipb.NodeUnstageVolumeRequest).GetStagingTargetPath(), "volplane-doctor"))
				return c.pass()
			},
		}},
		"one unpublish is all": {check: "two-targets", spoil: spoils{
			"NodeUnpublishVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.NodeUnpublishVolumeRequest)
				name := filepath.Base(filepath.Dir(r.GetTargetPath()))
				all, _ := scratch.Mounts(filepath.Join(c.scratch, "pods"))
				for _, path := range all {
					if r.GetVolumeId() != "" && filepath.Base(filepath.Dir(path)) == name {
						_ = mount.Unmount(path)
					}
				}
				return c.pass()
			},
		}},
		"two single writers": {check: "single-writer", spoil: spoils{
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				mode := c.req.(*csipb.NodePublishVolumeRequest).GetVolumeCapability().GetAccessMode()
				if mode.GetMode() == csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
					mode.Mode = csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
				}
				return c.pass()
			},
		}},
		"read-only is ignored": {check: "read-only", spoil: spoils{
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.NodePublishVolumeRequest)
				if mounts(r.GetTargetPath()) == 0 {
					r.Readonly = false
				}
				return c.pass()
			},
		}},
	}
}

func blockFaults() map[string]fault {
	return map[string]fault{
		"a block volume is a directory": {check: "block", also: []string{"snapshot-metadata"}, spoil: spoils{
			"NodeStageVolume": func(c *call) (proto.Message, error) {
				asFilesystem(c.req.(*csipb.NodeStageVolumeRequest).GetVolumeCapability())
				return c.pass()
			},
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				asFilesystem(c.req.(*csipb.NodePublishVolumeRequest).GetVolumeCapability())
				return c.pass()
			},
		}},
		"a block volume is erased": {check: "block", spoil: spoils{
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				m, err := c.pass()
				r := c.req.(*csipb.NodePublishVolumeRequest)
				if err == nil && r.GetVolumeCapability().GetBlock() != nil {
					err = os.WriteFile(r.GetTargetPath(), make([]byte, 4096), 0o600)
				}
				return m, err
			},
		}},
	}
}

func statsFaults() map[string]fault {
	return map[string]fault{
		"statistics in KiB": {check: "stats", level: finding.Warn, spoil: spoils{
			"NodeGetVolumeStats": on(func(_ *call, r *csipb.NodeGetVolumeStatsResponse) {
				u := r.Usage[0]
				u.Total, u.Used, u.Available = u.Total>>10, u.Used>>10, u.Available>>10
			}),
		}},
		"more used than there is": {check: "stats", spoil: spoils{
			"NodeGetVolumeStats": on(func(_ *call, r *csipb.NodeGetVolumeStatsResponse) {
				r.Usage[0].Used = 2 * r.Usage[0].Total
			}),
		}},
		"statistics of what is not there": {check: "stats-path", also: []string{"unknown-ids"}, spoil: spoils{
			"NodeGetVolumeStats": instead(codes.NotFound, codes.OK),
		}},
		"growth that is not told": {check: "grow-volume", spoil: spoils{
			"ControllerExpandVolume": on(func(_ *call, r *csipb.ControllerExpandVolumeResponse) { r.CapacityBytes /= 2 }),
		}},
		"growth each time": {check: "grow-volume", spoil: spoils{
			"ControllerExpandVolume": on(func(c *call, r *csipb.ControllerExpandVolumeResponse) {
				r.CapacityBytes += int64(c.count("grow")) << 20
			}),
		}},
		"volumes that shrink": {check: "grow-shrink", spoil: spoils{
			"ControllerExpandVolume": instead(codes.OutOfRange, codes.OK),
		}},
	}
}

func growFaults() map[string]fault {
	return map[string]fault{
		"growth that does nothing": {check: "grown", spoil: spoils{
			"NodeExpandVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.NodeExpandVolumeRequest)
				if mounts(r.GetVolumePath()) == 0 {
					return c.pass()
				}
				return &csipb.NodeExpandVolumeResponse{}, nil
			},
		}},
		"growth that destroys": {check: "grown", spoil: spoils{
			"NodeExpandVolume": func(c *call) (proto.Message, error) {
				if path := c.req.(*csipb.NodeExpandVolumeRequest).GetVolumePath(); path != "" {
					_ = os.Truncate(filepath.Join(path, "volplane-doctor"), 0)
				}
				return c.pass()
			},
		}},
		"a filesystem that nobody asked for": {check: "fs-type", level: finding.Warn, spoil: spoils{
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				m, err := c.pass()
				r := c.req.(*csipb.NodePublishVolumeRequest)
				if err == nil && r.GetVolumeCapability().GetMount().GetFsType() == "ext4" {
					err = errors.Join(mount.Unmount(r.GetTargetPath()), unix.Mount("x", r.GetTargetPath(), "tmpfs", 0, "size=1m"))
				}
				return m, err
			},
			"NodeUnpublishVolume": func(c *call) (proto.Message, error) {
				path := c.req.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath()
				if at, mounted := mountedAt(path); mounted && at.Type == "tmpfs" {
					_ = mount.Unmount(path)
				}
				return c.pass()
			},
		}},
	}
}

// asFilesystem makes a capability one of a filesystem.
func asFilesystem(c *csipb.VolumeCapability) {
	if c.GetBlock() != nil {
		c.AccessType = &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}}
	}
}
