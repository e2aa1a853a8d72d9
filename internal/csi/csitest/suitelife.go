package csitest

import (
	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// use is one volume that is attached, staged, published, and back. Steps that the driver does not
// support are skipped, as volplane does.
type use struct {
	*suite
	volume     *csipb.Volume
	capability *csipb.VolumeCapability
	node       string
	context    map[string]string
	stagedAt   string
}

func (s *suite) use(name string, capability *csipb.VolumeCapability) *use {
	s.t.Helper()
	info, err := s.d.NodeInfo(s.ctx)
	s.mustSucceed("NodeGetInfo", err)
	u := &use{suite: s, volume: s.createVolume(name, capability), capability: capability, node: info.ID}
	s.cleanup = func() {
		_, _, _ = u.unpublish(), u.unstage(), u.detach()
		_, _ = s.c.DeleteVolume(s.ctx, &csipb.DeleteVolumeRequest{VolumeId: u.volume.GetVolumeId()})
	}
	return u
}

func (u *use) attach() error {
	if !u.d.Controller.PublishUnpublish {
		return nil
	}
	r, err := u.c.ControllerPublishVolume(u.ctx, &csipb.ControllerPublishVolumeRequest{
		VolumeId: u.volume.GetVolumeId(), NodeId: u.node, VolumeCapability: u.capability,
		VolumeContext: u.volume.GetVolumeContext(),
	})
	u.context = r.GetPublishContext()
	return err
}

func (u *use) detach() error {
	if !u.d.Controller.PublishUnpublish {
		return nil
	}
	_, err := u.c.ControllerUnpublishVolume(u.ctx,
		&csipb.ControllerUnpublishVolumeRequest{VolumeId: u.volume.GetVolumeId(), NodeId: u.node})
	return err
}

func (u *use) stage() error {
	if !u.d.Node.StageUnstage {
		return nil
	}
	u.stagedAt = u.staging()
	_, err := u.n.NodeStageVolume(u.ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: u.volume.GetVolumeId(), StagingTargetPath: u.stagedAt, VolumeCapability: u.capability,
		VolumeContext: u.volume.GetVolumeContext(), PublishContext: u.context,
	})
	return err
}

func (u *use) unstage() error {
	if !u.d.Node.StageUnstage {
		return nil
	}
	_, err := u.n.NodeUnstageVolume(u.ctx, &csipb.NodeUnstageVolumeRequest{
		VolumeId: u.volume.GetVolumeId(), StagingTargetPath: u.path("staging"),
	})
	return err
}

func (u *use) publish() error {
	_, err := u.n.NodePublishVolume(u.ctx, &csipb.NodePublishVolumeRequest{
		VolumeId: u.volume.GetVolumeId(), TargetPath: u.path("target"), StagingTargetPath: u.stagedAt,
		VolumeCapability: u.capability,
		VolumeContext:    u.volume.GetVolumeContext(), PublishContext: u.context,
	})
	return err
}

func (u *use) unpublish() error {
	_, err := u.n.NodeUnpublishVolume(u.ctx,
		&csipb.NodeUnpublishVolumeRequest{VolumeId: u.volume.GetVolumeId(), TargetPath: u.path("target")})
	return err
}

func (u *use) publishAll() {
	u.t.Helper()
	u.repeat("ControllerPublishVolume", u.attach)
	u.repeat("NodeStageVolume", u.stage)
	u.repeat("NodePublishVolume", u.publish)
}

func (u *use) removeAll() {
	u.t.Helper()
	u.repeat("NodeUnpublishVolume", u.unpublish)
	u.repeat("NodeUnstageVolume", u.unstage)
	u.repeat("ControllerUnpublishVolume", u.detach)
	u.delete(u.volume.GetVolumeId())
}

// lifeCycle publishes a volume and undoes it, each step twice.
func (s *suite) lifeCycle(capability *csipb.VolumeCapability) {
	s.t.Helper()
	u := s.use("suite-life", capability)
	u.publishAll()
	if !exists(s.path("target")) {
		s.t.Error("the volume is published, but there is no target")
	}
	if s.d.Node.Stats {
		r, err := s.n.NodeGetVolumeStats(s.ctx, &csipb.NodeGetVolumeStatsRequest{
			VolumeId: u.volume.GetVolumeId(), VolumePath: s.path("target"),
		})
		s.mustSucceed("NodeGetVolumeStats", err)
		if len(r.GetUsage()) == 0 {
			s.t.Error("NodeGetVolumeStats reports no usage")
		}
	}
	if s.d.Controller.PublishUnpublish {
		_, err := s.c.DeleteVolume(s.ctx, &csipb.DeleteVolumeRequest{VolumeId: u.volume.GetVolumeId()})
		s.wantCode("DeleteVolume of a volume in use", err, codes.FailedPrecondition)
	}
	u.removeAll()
	if exists(s.path("target")) {
		s.t.Error("the volume is unpublished, but the target is there")
	}
	if s.d.Controller.ListVolumes {
		r, err := s.c.ListVolumes(s.ctx, &csipb.ListVolumesRequest{})
		s.mustSucceed("ListVolumes", err)
		for _, e := range r.GetEntries() {
			if e.GetVolume().GetVolumeId() == u.volume.GetVolumeId() {
				s.t.Error("ListVolumes knows the deleted volume")
			}
		}
	}
}

func (s *suite) publish() {
	if !s.d.Controller.PublishUnpublish {
		return
	}
	u := s.use("suite-publish", s.capability(false))
	s.repeat("ControllerPublishVolume", u.attach)
	node := u.node
	u.node = "suite-no-such-node"
	if !s.target.AnyID {
		s.wantCode("ControllerPublishVolume to an unknown node", u.attach(), codes.NotFound, codes.FailedPrecondition)
	}
	s.repeat("ControllerUnpublishVolume from an unknown node", u.detach)
	u.node = node
	s.repeat("ControllerUnpublishVolume", u.detach)
	s.delete(u.volume.GetVolumeId())
}

func (s *suite) unknownIDs() {
	if s.target.AnyID {
		return
	}
	u := s.use("suite-unknown", s.capability(false))
	s.delete(u.volume.GetVolumeId())
	if s.d.Controller.PublishUnpublish {
		s.wantCode("ControllerPublishVolume", u.attach(), codes.NotFound)
		s.mustSucceed("ControllerUnpublishVolume", u.detach())
	}
	if s.d.Node.StageUnstage {
		s.wantCode("NodeStageVolume", u.stage(), codes.NotFound)
		s.wantCode("NodeUnstageVolume", u.unstage(), codes.OK, codes.NotFound)
	}
	s.wantCode("NodePublishVolume", u.publish(), codes.NotFound)
	s.wantCode("NodeUnpublishVolume", u.unpublish(), codes.OK, codes.NotFound)
	if s.d.Controller.Expand {
		_, err := s.c.ControllerExpandVolume(s.ctx, u.growth(2))
		s.wantCode("ControllerExpandVolume", err, codes.NotFound)
	}
	if exists(s.path("target")) {
		s.t.Error("a volume that does not exist has a target")
	}
}

func (u *use) growth(factor int64) *csipb.ControllerExpandVolumeRequest {
	return &csipb.ControllerExpandVolumeRequest{
		VolumeId: u.volume.GetVolumeId(), CapacityRange: &csipb.CapacityRange{RequiredBytes: factor * u.target.Bytes},
		VolumeCapability: u.capability,
	}
}

// expand grows a volume, in use if the driver supports that: twice to a new size, and then to a smaller one.
func (s *suite) expand() {
	if !s.d.Controller.Expand {
		return
	}
	u := s.use("suite-expand", s.capability(false))
	online := s.d.Plugin.OnlineExpansion
	if online {
		u.publishAll()
	}
	onNode := false
	for _, factor := range []int64{2, 2, 1} {
		r, err := s.c.ControllerExpandVolume(s.ctx, u.growth(factor))
		s.mustSucceed("ControllerExpandVolume", err)
		if r.GetCapacityBytes() < 2*s.target.Bytes {
			s.t.Errorf("capacity %d, want %d or more", r.GetCapacityBytes(), 2*s.target.Bytes)
		}
		onNode = onNode || r.GetNodeExpansionRequired()
	}
	if online && onNode && s.d.Node.Expand {
		for range 2 {
			_, err := s.n.NodeExpandVolume(s.ctx, &csipb.NodeExpandVolumeRequest{
				VolumeId: u.volume.GetVolumeId(), VolumePath: s.path("target"), StagingTargetPath: u.stagedAt,
				CapacityRange: u.growth(2).GetCapacityRange(), VolumeCapability: u.capability,
			})
			// A node may lack the tools to grow a mounted filesystem; CSI has this code for it.
			s.wantCode("NodeExpandVolume", err, codes.OK, codes.FailedPrecondition)
		}
	}
	if online {
		u.removeAll()
		return
	}
	s.delete(u.volume.GetVolumeId())
}
