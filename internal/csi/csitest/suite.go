package csitest

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

// Target is a driver under test, and how Suite calls it.
type Target struct {
	// Socket is the path of the driver's socket.
	Socket string
	// Dir is a directory on the node for staging and target paths.
	Dir string
	// Parameters and FSType are used for every volume; if empty, the driver chooses.
	Parameters map[string]string
	FSType     string
	// Bytes is a volume size that the driver can create and double; 0 means 32 MiB.
	Bytes int64
	// Block adds tests of raw block volumes.
	Block bool
	// AnyID says that the driver has no list of volumes and nodes, so it accepts any id.
	AnyID bool
}

// suiteLimit is the time limit of each test, which is long for drivers that create filesystems slowly.
const suiteLimit = 5 * time.Minute

// Suite tests the behaviour of drivers that volplane relies on: each call may be repeated, undoing what does not exist
// succeeds, and unknown ids have their own error codes. start is called for each test.
func Suite(t *testing.T, start func(t *testing.T) Target) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(s *suite)
	}{
		{"identity", (*suite).identity},
		{"create", (*suite).create},
		{"delete", (*suite).remove},
		{"missing arguments", (*suite).missingArguments},
		{"unknown ids", (*suite).unknownIDs},
		{"publish", (*suite).publish},
		{"life of a filesystem", func(s *suite) { s.lifeCycle(s.capability(false)) }},
		{"life of a block volume", func(s *suite) {
			if s.target.Block {
				s.lifeCycle(s.capability(true))
			}
		}},
		{"expand", (*suite).expand},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), suiteLimit)
			defer cancel()
			target := start(t)
			target.Bytes = cmp.Or(target.Bytes, 32<<20)
			d, err := csi.Dial(ctx, target.Socket)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			s := &suite{t: t, ctx: ctx, target: target, d: d, c: d.ControllerClient(), n: d.NodeClient(), cleanup: func() {}}
			defer func() {
				if t.Failed() {
					s.cleanup()
				}
			}()
			test.run(s)
		})
	}
}

// suite is one test of Suite.
type suite struct {
	t      *testing.T
	ctx    context.Context //nolint:containedctx // that of the test
	target Target
	d      *csi.Driver
	c      csipb.ControllerClient
	n      csipb.NodeClient
	// cleanup removes what a failed test has left.
	cleanup func()
}

func (s *suite) mustSucceed(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

// repeat makes a call twice, as after a lost answer; both must succeed.
func (s *suite) repeat(what string, call func() error) {
	s.t.Helper()
	s.mustSucceed(what, call())
	s.mustSucceed(what+" again", call())
}

func (s *suite) wantCode(what string, err error, want ...codes.Code) {
	s.t.Helper()
	for _, code := range want {
		if csi.Code(err) == code {
			return
		}
	}
	s.t.Errorf("%s: %v, want code %v", what, err, want)
}

func (s *suite) capability(block bool) *csipb.VolumeCapability {
	s.t.Helper()
	mode, err := csi.AccessMode([]string{"ReadWriteOnce"}, s.d.Controller.SingleNodeMultiWriter)
	s.mustSucceed("choose access mode", err)
	return csi.Capability(mode, block, s.target.FSType, nil)
}

func (s *suite) request(name string, capability *csipb.VolumeCapability) *csipb.CreateVolumeRequest {
	return &csipb.CreateVolumeRequest{
		Name: name, Parameters: s.target.Parameters, CapacityRange: &csipb.CapacityRange{RequiredBytes: s.target.Bytes},
		VolumeCapabilities: []*csipb.VolumeCapability{capability},
	}
}

func (s *suite) createVolume(name string, capability *csipb.VolumeCapability) *csipb.Volume {
	s.t.Helper()
	r, err := s.c.CreateVolume(s.ctx, s.request(name, capability))
	s.mustSucceed("CreateVolume", err)
	return r.GetVolume()
}

func (s *suite) identity() {
	info, err := s.d.NodeInfo(s.ctx)
	s.mustSucceed("NodeGetInfo", err)
	if s.d.Name == "" || s.d.Version == "" || info.ID == "" {
		s.t.Errorf("driver %q, version %q, node %q: none may be empty", s.d.Name, s.d.Version, info.ID)
	}
	if s.d.Plugin.AccessibilityConstraints && len(info.Topology) == 0 {
		s.t.Error("the driver has constraints of topology, the node no topology")
	}
	if !s.d.Controller.CreateDelete {
		s.t.Error("the driver makes no volumes")
	}
}

func (s *suite) create() {
	r := s.request("suite-create", s.capability(false))
	first, err := s.c.CreateVolume(s.ctx, r)
	s.mustSucceed("CreateVolume", err)
	second, err := s.c.CreateVolume(s.ctx, r)
	s.mustSucceed("CreateVolume again", err)
	v := first.GetVolume()
	if v.GetVolumeId() != second.GetVolume().GetVolumeId() {
		s.t.Errorf("the same request made volumes %s and %s", v.GetVolumeId(), second.GetVolume().GetVolumeId())
	}
	if v.GetCapacityBytes() != 0 && v.GetCapacityBytes() < s.target.Bytes {
		s.t.Errorf("capacity %d, want %d or more", v.GetCapacityBytes(), s.target.Bytes)
	}
	r.CapacityRange.RequiredBytes *= 2
	_, err = s.c.CreateVolume(s.ctx, r)
	s.wantCode("CreateVolume with another size", err, codes.AlreadyExists)
	other := s.createVolume("suite-create-other", s.capability(false))
	if other.GetVolumeId() == v.GetVolumeId() {
		s.t.Error("two names have one volume")
	}
	r.Name, r.CapacityRange = "suite-create-range",
		&csipb.CapacityRange{RequiredBytes: s.target.Bytes, LimitBytes: s.target.Bytes - 1}
	_, err = s.c.CreateVolume(s.ctx, r)
	s.wantCode("CreateVolume with a limit below the size", err, codes.OutOfRange, codes.InvalidArgument)
	s.delete(v.GetVolumeId())
	s.delete(other.GetVolumeId())
}

func (s *suite) delete(id string) {
	s.t.Helper()
	s.repeat("DeleteVolume", func() error {
		_, err := s.c.DeleteVolume(s.ctx, &csipb.DeleteVolumeRequest{VolumeId: id})
		return err
	})
}

func (s *suite) remove() {
	v := s.createVolume("suite-delete", s.capability(false))
	s.delete(v.GetVolumeId())
	s.delete("suite-no-such-volume")
	again := s.createVolume("suite-delete", s.capability(false))
	s.delete(again.GetVolumeId())
}

func (s *suite) missingArguments() {
	capability := s.capability(false)
	_, err := s.c.CreateVolume(s.ctx, s.request("", capability))
	s.wantCode("CreateVolume without a name", err, codes.InvalidArgument)
	r := s.request("suite-missing", capability)
	r.VolumeCapabilities = nil
	_, err = s.c.CreateVolume(s.ctx, r)
	s.wantCode("CreateVolume without capabilities", err, codes.InvalidArgument)
	_, err = s.c.DeleteVolume(s.ctx, &csipb.DeleteVolumeRequest{})
	s.wantCode("DeleteVolume without an id", err, codes.InvalidArgument)
	_, err = s.n.NodePublishVolume(s.ctx, &csipb.NodePublishVolumeRequest{
		VolumeCapability: capability, TargetPath: s.path("target"),
	})
	s.wantCode("NodePublishVolume without an id", err, codes.InvalidArgument)
	_, err = s.n.NodePublishVolume(s.ctx, &csipb.NodePublishVolumeRequest{VolumeId: "x", VolumeCapability: capability})
	s.wantCode("NodePublishVolume without a path", err, codes.InvalidArgument)
	_, err = s.n.NodeUnpublishVolume(s.ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: "x"})
	s.wantCode("NodeUnpublishVolume without a path", err, codes.InvalidArgument)
	if s.d.Node.StageUnstage {
		_, err = s.n.NodeStageVolume(s.ctx, &csipb.NodeStageVolumeRequest{
			VolumeId: "x", StagingTargetPath: s.path("staging"),
		})
		s.wantCode("NodeStageVolume without a capability", err, codes.InvalidArgument)
	}
}

func (s *suite) path(name string) string { return filepath.Join(s.target.Dir, name) }

// staging creates the staging directory, as CSI requires of the caller.
func (s *suite) staging() string {
	s.t.Helper()
	path := s.path("staging")
	s.mustSucceed("make staging directory", os.MkdirAll(path, 0o750))
	return path
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
