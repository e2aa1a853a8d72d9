package csitest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

// Target is a driver that Suite tests, and what it wants to be called with.
type Target struct {
	// Socket is where it listens.
	Socket string
	// Dir is a directory on the node for staging and target paths.
	Dir string
	// Parameters and FSType go into every volume; empty is the driver's choice.
	Parameters map[string]string
	FSType     string
	// Bytes is a size that the driver can make and double; 0 is 32 MiB.
	Bytes int64
	// Block has raw block volumes tested as well.
	Block bool
	// AnyID says that the driver has no list of volumes and nodes: each id may
	// be one.
	AnyID bool
}

// suiteLimit bounds each test of the suite, which must not hang, and may be slow
// where a driver makes filesystems.
const suiteLimit = 5 * time.Minute

// Suite tests that a driver does what volplane relies on: each call may be
// repeated, what is not there need not be taken away, and unknown things are
// told apart from failures. start is called for each test.
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
		{"life of a filesystem", func(s *suite) { s.life(s.capability(false)) }},
		{"life of a block volume", func(s *suite) {
			if s.target.Block {
				s.life(s.capability(true))
			}
		}},
		{"expand", (*suite).expand},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), suiteLimit)
			defer cancel()
			target := start(t)
			if target.Bytes == 0 {
				target.Bytes = 32 << 20
			}
			d, err := csi.Dial(ctx, target.Socket)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			s := &suite{t: t, ctx: ctx, target: target, d: d, c: d.ControllerClient(), n: d.NodeClient(), undo: func() {}}
			defer func() {
				if t.Failed() {
					s.undo()
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
	// undo takes back what a test that failed has left.
	undo func()
}

func (s *suite) ok(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

// twice makes a call that must go well, and again, because that is what
// happens when an answer is lost.
func (s *suite) twice(what string, call func() error) {
	s.t.Helper()
	s.ok(what, call())
	s.ok(what+" again", call())
}

func (s *suite) want(what string, err error, want ...codes.Code) {
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
	s.ok("choose access mode", err)
	return csi.Capability(mode, block, s.target.FSType, nil)
}

func (s *suite) request(name string, capability *csipb.VolumeCapability) *csipb.CreateVolumeRequest {
	return &csipb.CreateVolumeRequest{
		Name: name, Parameters: s.target.Parameters, CapacityRange: &csipb.CapacityRange{RequiredBytes: s.target.Bytes},
		VolumeCapabilities: []*csipb.VolumeCapability{capability},
	}
}

func (s *suite) made(name string, capability *csipb.VolumeCapability) *csipb.Volume {
	s.t.Helper()
	r, err := s.c.CreateVolume(s.ctx, s.request(name, capability))
	s.ok("CreateVolume", err)
	return r.GetVolume()
}

func (s *suite) identity() {
	info, err := s.d.NodeInfo(s.ctx)
	s.ok("NodeGetInfo", err)
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
	s.ok("CreateVolume", err)
	second, err := s.c.CreateVolume(s.ctx, r)
	s.ok("CreateVolume again", err)
	v := first.GetVolume()
	if v.GetVolumeId() != second.GetVolume().GetVolumeId() {
		s.t.Errorf("the same request made volumes %s and %s", v.GetVolumeId(), second.GetVolume().GetVolumeId())
	}
	if v.GetCapacityBytes() != 0 && v.GetCapacityBytes() < s.target.Bytes {
		s.t.Errorf("capacity %d, want %d or more", v.GetCapacityBytes(), s.target.Bytes)
	}
	r.CapacityRange.RequiredBytes *= 2
	_, err = s.c.CreateVolume(s.ctx, r)
	s.want("CreateVolume with another size", err, codes.AlreadyExists)
	other := s.made("suite-create-other", s.capability(false))
	if other.GetVolumeId() == v.GetVolumeId() {
		s.t.Error("two names have one volume")
	}
	r.Name, r.CapacityRange = "suite-create-range",
		&csipb.CapacityRange{RequiredBytes: s.target.Bytes, LimitBytes: s.target.Bytes - 1}
	_, err = s.c.CreateVolume(s.ctx, r)
	s.want("CreateVolume with a limit below the size", err, codes.OutOfRange, codes.InvalidArgument)
	s.delete(v.GetVolumeId())
	s.delete(other.GetVolumeId())
}

func (s *suite) delete(id string) {
	s.t.Helper()
	s.twice("DeleteVolume", func() error {
		_, err := s.c.DeleteVolume(s.ctx, &csipb.DeleteVolumeRequest{VolumeId: id})
		return err
	})
}

func (s *suite) remove() {
	v := s.made("suite-delete", s.capability(false))
	s.delete(v.GetVolumeId())
	s.delete("suite-no-such-volume")
	again := s.made("suite-delete", s.capability(false))
	s.delete(again.GetVolumeId())
}

func (s *suite) missingArguments() {
	capability := s.capability(false)
	_, err := s.c.CreateVolume(s.ctx, s.request("", capability))
	s.want("CreateVolume without a name", err, codes.InvalidArgument)
	r := s.request("suite-missing", capability)
	r.VolumeCapabilities = nil
	_, err = s.c.CreateVolume(s.ctx, r)
	s.want("CreateVolume without capabilities", err, codes.InvalidArgument)
	_, err = s.c.DeleteVolume(s.ctx, &csipb.DeleteVolumeRequest{})
	s.want("DeleteVolume without an id", err, codes.InvalidArgument)
	_, err = s.n.NodePublishVolume(s.ctx, &csipb.NodePublishVolumeRequest{
		VolumeCapability: capability, TargetPath: s.path("target"),
	})
	s.want("NodePublishVolume without an id", err, codes.InvalidArgument)
	_, err = s.n.NodePublishVolume(s.ctx, &csipb.NodePublishVolumeRequest{VolumeId: "x", VolumeCapability: capability})
	s.want("NodePublishVolume without a path", err, codes.InvalidArgument)
	_, err = s.n.NodeUnpublishVolume(s.ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: "x"})
	s.want("NodeUnpublishVolume without a path", err, codes.InvalidArgument)
	if s.d.Node.StageUnstage {
		_, err = s.n.NodeStageVolume(s.ctx, &csipb.NodeStageVolumeRequest{
			VolumeId: "x", StagingTargetPath: s.path("staging"),
		})
		s.want("NodeStageVolume without a capability", err, codes.InvalidArgument)
	}
}

func (s *suite) path(name string) string { return filepath.Join(s.target.Dir, name) }

// staging makes the staging directory, which is the caller's task.
func (s *suite) staging() string {
	s.t.Helper()
	path := s.path("staging")
	s.ok("make staging directory", os.MkdirAll(path, 0o750))
	return path
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
