package csitest_test

import (
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

func TestSuite(t *testing.T) {
	small := csitest.Full()
	small.Controller.PublishUnpublish, small.Node = false, csi.NodeCapabilities{}
	small.Plugin.OnlineExpansion, small.Plugin.OfflineExpansion = false, true
	for name, config := range map[string]csitest.Config{"full": csitest.Full(), "small": small} {
		t.Run(name, func(t *testing.T) {
			csitest.Suite(t, func(t *testing.T) csitest.Target {
				d := csitest.Start(t, config)
				t.Cleanup(func() {
					for _, v := range d.Volumes() {
						t.Errorf("the suite left %+v", v)
					}
					for _, o := range d.Overlaps() {
						t.Error(o)
					}
				})
				return csitest.Target{Socket: d.Socket, Dir: t.TempDir(), Block: true}
			})
		})
	}
}

func TestOrderIsEnforced(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c, err := csi.Dial(t.Context(), d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	capability := csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "", nil)
	v, err := c.ControllerClient().CreateVolume(t.Context(),
		&csipb.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csipb.VolumeCapability{capability}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.NodeClient().NodeStageVolume(t.Context(), &csipb.NodeStageVolumeRequest{
		VolumeId: v.GetVolume().GetVolumeId(), StagingTargetPath: "/s", VolumeCapability: capability,
	})
	if got := csi.Code(err).String(); got != "FailedPrecondition" {
		t.Errorf("stage before attach: %s, want FailedPrecondition", got)
	}
}
