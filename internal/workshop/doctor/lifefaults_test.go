package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/workshop/finding"
	"volplane.dev/volplane/internal/workshop/scratch"
)

// withoutSource makes a new volume empty, and says that it is not.
func withoutSource(is func(*csipb.VolumeContentSource) bool) func(*call) (proto.Message, error) {
	return func(c *call) (proto.Message, error) {
		r := proto.Clone(c.req).(*csipb.CreateVolumeRequest)
		source := r.GetVolumeContentSource()
		if !is(source) {
			return c.pass()
		}
		if m, err := c.pass(); err != nil {
			return m, err
		}
		r.VolumeContentSource, r.Name = nil, r.Name+" empty"
		m, err := c.ask(c.method, r)
		if err == nil {
			m.(*csipb.CreateVolumeResponse).Volume.ContentSource = source
		}
		return m, err
	}
}

func copyFaults() map[string]fault {
	return map[string]fault{
		"an empty clone": {check: "clone", also: []string{"leftover-volumes"}, spoil: spoils{
			"CreateVolume": withoutSource(func(s *csipb.VolumeContentSource) bool { return s.GetVolume() != nil }),
		}},
		"an empty copy of a snapshot": {check: "restore", also: []string{"leftover-volumes"}, spoil: spoils{
			"CreateVolume": withoutSource(func(s *csipb.VolumeContentSource) bool { return s.GetSnapshot() != nil }),
		}},
		"two snapshots of one name": {check: "snapshot", also: []string{"list-snapshots", "restore"}, spoil: spoils{
			"CreateSnapshot": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.CreateSnapshotRequest)
				if r.Name != "" {
					r.Name = fmt.Sprintf("%s %d", r.Name, c.count("snapshot"))
				}
				return c.pass()
			},
		}},
		"two groups of one name": {check: "group-snapshot", spoil: spoils{
			"CreateVolumeGroupSnapshot": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.CreateVolumeGroupSnapshotRequest)
				r.Name = fmt.Sprintf("%s %d", r.Name, c.count("group"))
				return c.pass()
			},
		}},
		"a group without a volume": {check: "group-snapshot", spoil: spoils{
			"CreateVolumeGroupSnapshot": on(func(_ *call, r *csipb.CreateVolumeGroupSnapshotResponse) {
				r.GroupSnapshot.Snapshots = r.GroupSnapshot.Snapshots[1:]
			}),
		}},
		"a group that stays": {check: "group-snapshot", spoil: spoils{
			"DeleteVolumeGroupSnapshot": func(*call) (proto.Message, error) {
				return &csipb.DeleteVolumeGroupSnapshotResponse{}, nil
			},
		}},
		"a list of all snapshots": {check: "list-snapshots", spoil: spoils{
			"ListSnapshots": func(c *call) (proto.Message, error) {
				c.req.(*csipb.ListSnapshotsRequest).SourceVolumeId = ""
				return c.pass()
			},
		}},
	}
}

func lifeFaults() map[string]fault {
	return map[string]fault{
		"a secret in an error": {check: "secrets", spoil: spoils{
			"NodeStageVolume": func(c *call) (proto.Message, error) {
				m, err := c.pass()
				if err != nil {
					err = status.Errorf(status.Code(err), "login with %v failed",
						c.req.(*csipb.NodeStageVolumeRequest).GetSecrets()["volplane-doctor"])
				}
				return m, err
			},
		}},
		"a secret in the log": {check: "secrets", spoil: spoils{
			"NodeStageVolume": func(c *call) (proto.Message, error) {
				fmt.Println("called with", c.req)
				return c.pass()
			},
		}},
		"a secret in the context": {check: "secrets", spoil: spoils{
			"ControllerPublishVolume": on(func(c *call, r *csipb.ControllerPublishVolumeResponse) {
				r.PublishContext["with"] = c.req.(*csipb.ControllerPublishVolumeRequest).GetSecrets()["volplane-doctor"]
			}),
		}},
	}
}

func sayFaults() map[string]fault {
	return map[string]fault{
		"a context that is too long": {check: "limits", level: finding.Warn, spoil: spoils{
			"ControllerPublishVolume": on(func(_ *call, r *csipb.ControllerPublishVolumeResponse) {
				r.PublishContext["all"] = strings.Repeat("x", 5000)
			}),
		}},
		"a message that is too long": {check: "messages", level: finding.Warn, spoil: spoils{
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				m, err := c.pass()
				if err != nil {
					err = status.Error(status.Code(err), strings.Repeat("x", 5000))
				}
				return m, err
			},
		}},
		"a call hangs": {check: "time-limit", also: []string{"leftover-volumes", "leftover-mounts"}, spoil: spoils{
			"NodeUnpublishVolume": func(c *call) (proto.Message, error) {
				if mounts(c.req.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath()) > 0 && !c.kept("hung") {
					_ = c.keep("hung", "")
					<-c.ctx.Done()
					// Whoever hangs does not notice that nobody waits.
					<-time.After(time.Hour)
				}
				return c.pass()
			},
		}},
	}
}

// lasting is how long a call lasts during which something else must happen: another call, or the driver's end. It is
// much longer than either is late on a loaded machine.
const lasting = 300 * time.Millisecond

func onceFaults() map[string]fault {
	return map[string]fault{
		"one name twice at once": {check: "same-at-once", spoil: spoils{
			"CreateVolume": func(c *call) (proto.Message, error) {
				r := proto.Clone(c.req).(*csipb.CreateVolumeRequest)
				name := r.GetName()
				defer c.enter(name)()
				if c.inside(name) > 1 {
					r.Name += " 2"
				}
				// Whoever comes second comes while the first is there.
				takes(lasting)
				return c.ask(c.method, r)
			},
		}, also: []string{"leftover-volumes", "lost-answer", "killed-create"}},
		"one at a time": {check: "ten-at-once", also: []string{"same-at-once"}, spoil: spoils{
			"NodeStageVolume": func(c *call) (proto.Message, error) {
				defer c.enter("stage")()
				if c.inside("stage") > 1 {
					return nil, status.Error(codes.Internal, "something else is being staged")
				}
				takes(lasting)
				return c.pass()
			},
		}},
		"what is given up is never done": {check: "lost-answer", spoil: spoils{
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				given := "given up " + c.req.(*csipb.NodePublishVolumeRequest).GetTargetPath()
				if c.peek(given) == 0 {
					if !during("lost-answer") {
						return c.pass()
					}
					<-c.ctx.Done()
					c.count(given)
				}
				return nil, status.Error(codes.Internal, "an operation is in progress")
			},
		}},
		"a panic": {check: "stays-up", also: []string{"create-range", "create-names"}, spoil: spoils{
			"CreateVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.CreateVolumeRequest).GetCapacityRange()
				if r.GetLimitBytes() > 0 && r.GetLimitBytes() < r.GetRequiredBytes() {
					panic("a size that cannot be")
				}
				return c.pass()
			},
		}},
	}
}

func endFaults() map[string]fault {
	return map[string]fault{
		"a socket that is left": {check: "stale-socket", begin: func(p *proxy) error {
			if _, err := os.Stat(p.endpoint); err == nil {
				return fmt.Errorf("listen: %s: address already in use", p.endpoint)
			}
			return nil
		}, also: []string{
			"killed-mounts", "killed-create", "killed-stage", "killed-publish", "killed-unpublish",
			"killed-delete", "ends",
		}},
		"mounts that go with the driver": {check: "killed-mounts", begin: func(p *proxy) error {
			return scratch.UnmountBelow(filepath.Join(p.scratch, "pods"))
		}},
	}
}

// takes makes a call last as long as that, whatever signals come: the runtime sends some of its own.
func takes(d time.Duration) {
	left := unix.NsecToTimespec(d.Nanoseconds())
	for errors.Is(unix.Nanosleep(&left, &left), unix.EINTR) {
	}
}

func killedFaults() map[string]fault {
	return map[string]fault{
		"a leak when it is killed": {check: "killed-create", also: []string{"leftover-volumes", "lost-answer"}, spoil: spoils{
			"CreateVolume": func(c *call) (proto.Message, error) {
				r := proto.Clone(c.req).(*csipb.CreateVolumeRequest)
				if r.GetName() == "" || r.GetVolumeContentSource() != nil {
					return c.pass()
				}
				r.Name = fmt.Sprintf("%.100s %d", r.Name, time.Now().UnixNano())
				begun := time.Now()
				m, err := c.ask(c.method, r)
				if err != nil {
					return m, err
				}
				// The stray volume is there for most of the call, however loaded the machine is: the doctor kills
				// the driver in the middle of what the call usually takes.
				takes(max(3*lasting, 4*time.Since(begun)))
				without := &call{c.proxy, context.WithoutCancel(c.ctx), c.method, c.req}
				_, _ = without.ask("/csi.v1.Controller/DeleteVolume",
					&csipb.DeleteVolumeRequest{VolumeId: m.(*csipb.CreateVolumeResponse).GetVolume().GetVolumeId()})
				return c.pass()
			},
		}},
		"stages once and for all": {check: "killed-stage", spoil: spoils{
			"NodeStageVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.NodeStageVolumeRequest)
				if r.GetVolumeId() == "" || r.GetStagingTargetPath() == "" || r.GetVolumeCapability() == nil {
					return c.pass()
				}
				mark := "staging-" + r.GetVolumeId()
				if c.kept(mark) && c.peek(mark) == 0 {
					return nil, status.Error(codes.Internal, "it is being staged")
				}
				c.count(mark)
				_ = c.keep(mark, "")
				takes(lasting)
				m, err := c.pass()
				_ = os.Remove(filepath.Join(c.dir, mark))
				return m, err
			},
		}},
		"attached until it ends": {check: "killed-publish", also: []string{
			"killed-unpublish", "killed-mounts", "killed-stage",
		}, spoil: spoils{
			"NodeStageVolume": func(c *call) (proto.Message, error) {
				m, err := c.pass()
				if err == nil {
					c.count("staged " + c.req.(*csipb.NodeStageVolumeRequest).GetVolumeId())
				}
				return m, err
			},
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				m, err := c.pass()
				if id := c.req.(*csipb.NodePublishVolumeRequest).GetVolumeId(); err == nil && c.peek("staged "+id) == 0 {
					return nil, status.Error(codes.Internal, "I do not know that it is staged")
				}
				return m, err
			},
		}},
		"does not end": {check: "ends", level: finding.Warn, begin: func(*proxy) error {
			return unix.Setenv("DOCTOR_TEST_STAYS", "1")
		}},
	}
}
