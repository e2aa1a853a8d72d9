package csi_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

func created(change func(v *csipb.Volume)) *csipb.CreateVolumeResponse {
	v := &csipb.Volume{VolumeId: "v", CapacityBytes: 1 << 20}
	change(v)
	return &csipb.CreateVolumeResponse{Volume: v}
}

func hugeMap() map[string]string {
	m := map[string]string{}
	for i := range 100 {
		m[fmt.Sprint(i)] = strings.Repeat("x", 1000)
	}
	return m
}

// What the driver did is not known when its answer cannot be used, even where
// gRPC's own code would be a final one.
func TestBadAnswersOfCreateVolume(t *testing.T) {
	for what, answer := range map[string]any{
		"no answer":         csitest.Raw(nil),
		"no volume":         &csipb.CreateVolumeResponse{},
		"no id":             created(func(v *csipb.Volume) { v.VolumeId = "" }),
		"long id":           created(func(v *csipb.Volume) { v.VolumeId = strings.Repeat("x", 1025) }),
		"negative capacity": created(func(v *csipb.Volume) { v.CapacityBytes = -1 }),
		"huge context":      created(func(v *csipb.Volume) { v.VolumeContext = hugeMap() }),
		"huge topology": created(func(v *csipb.Volume) {
			v.AccessibleTopology = []*csipb.Topology{{Segments: hugeMap()}}
		}),
		"long source": created(func(v *csipb.Volume) {
			v.ContentSource = &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Volume{
				Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: strings.Repeat("x", 1025)},
			}}
		}),
		"id with a newline":    created(func(v *csipb.Volume) { v.VolumeId = "v\nid" }),
		"id with a NUL":        created(func(v *csipb.Volume) { v.VolumeId = "v\x00id" }),
		"id with an escape":    created(func(v *csipb.Volume) { v.VolumeId = "\x1b[2J" }),
		"id with a C1 control": created(func(v *csipb.Volume) { v.VolumeId = "v\u0085" }),
		"topology's key with a newline": created(func(v *csipb.Volume) {
			v.AccessibleTopology = []*csipb.Topology{{Segments: map[string]string{"k\n": "v"}}}
		}),
		"topology's value with a newline": created(func(v *csipb.Volume) {
			v.AccessibleTopology = []*csipb.Topology{{Segments: map[string]string{"k": "v\n"}}}
		}),
		"context's key with a newline": created(func(v *csipb.Volume) { v.VolumeContext = map[string]string{"k\n": "v"} }),
		"source's id with a newline": created(func(v *csipb.Volume) {
			v.ContentSource = &csipb.VolumeContentSource{
				Type: &csipb.VolumeContentSource_Snapshot{Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: "s\n"}},
			}
		}),
		"no protocol buffer": csitest.Raw("\xff\xff\xff"),
		"no text":            csitest.Raw("\x0a\x04\x12\x02\xff\xfe"),
		"5 MiB":              created(func(v *csipb.Volume) { v.VolumeId = strings.Repeat("x", 5<<20) }),
	} {
		t.Run(what, func(t *testing.T) {
			d := csitest.Start(t, csitest.Full())
			c := dial(t, d)
			d.OnCall("CreateVolume", once(csitest.Action{Answer: answer}))
			err := create(t, c, "v")
			if !errors.Is(err, csi.ErrAnswer) || csi.OutcomeOf(err) != volume.Unknown ||
				csi.AnswerOf(fmt.Errorf("create: %w", err)).Outcome != volume.Unknown {
				t.Errorf("%v, want ErrAnswer and an unknown outcome", err)
			}
			if n := len(csi.Describe(err)); n > 600 {
				t.Errorf("description of %d bytes", n)
			}
			if err := create(t, c, "v"); err != nil {
				t.Errorf("a good answer is refused: %v", err)
			}
		})
	}
}

func TestBadAnswers(t *testing.T) {
	for what, test := range map[string]struct {
		method string
		answer any
		call   func(c *csi.Driver) error
	}{
		"node id missing": {"NodeGetInfo", &csipb.NodeGetInfoResponse{}, nodeInfo(t)},
		"node id long": {
			"NodeGetInfo", &csipb.NodeGetInfoResponse{NodeId: strings.Repeat("x", 257)}, nodeInfo(t),
		},
		"node id with a newline": {"NodeGetInfo", &csipb.NodeGetInfoResponse{NodeId: "n\nm"}, nodeInfo(t)},
		"node's zone with a newline": {"NodeGetInfo", &csipb.NodeGetInfoResponse{
			NodeId: "n", AccessibleTopology: &csipb.Topology{Segments: map[string]string{"zone": "a\x00"}},
		}, nodeInfo(t)},
		"snapshot id with a newline": {"CreateSnapshot", &csipb.CreateSnapshotResponse{
			Snapshot: &csipb.Snapshot{SnapshotId: "s\n", SourceVolumeId: "v"},
		}, func(c *csi.Driver) error {
			_, err := c.ControllerClient().CreateSnapshot(within(t, patience),
				&csipb.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v"})
			return err
		}},
		"listed node id with a newline": {
			"ListVolumes",
			&csipb.ListVolumesResponse{Entries: []*csipb.ListVolumesResponse_Entry{
				{Volume: &csipb.Volume{VolumeId: "v"}, Status: &csipb.ListVolumesResponse_VolumeStatus{
					PublishedNodeIds: []string{"n\n"},
				}},
			}}, func(c *csi.Driver) error {
				_, err := c.ControllerClient().ListVolumes(within(t, patience), &csipb.ListVolumesRequest{})
				return err
			},
		},
		"limit negative": {"NodeGetInfo", &csipb.NodeGetInfoResponse{NodeId: "n", MaxVolumesPerNode: -1}, nodeInfo(t)},
		"topology huge": {
			"NodeGetInfo", &csipb.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: &csipb.Topology{Segments: hugeMap()}},
			nodeInfo(t),
		},
		"publish context huge": {
			"ControllerPublishVolume", &csipb.ControllerPublishVolumeResponse{PublishContext: hugeMap()},
			func(c *csi.Driver) error {
				_, err := c.ControllerClient().ControllerPublishVolume(within(t, patience),
					&csipb.ControllerPublishVolumeRequest{VolumeId: "v"})
				return err
			},
		},
		"capacity negative": {"GetCapacity", &csipb.GetCapacityResponse{AvailableCapacity: -1}, func(c *csi.Driver) error {
			_, err := c.ControllerClient().GetCapacity(within(t, patience), &csipb.GetCapacityRequest{})
			return err
		}},
		"expanded to less than nothing": {
			"ControllerExpandVolume", &csipb.ControllerExpandVolumeResponse{CapacityBytes: -1},
			func(c *csi.Driver) error {
				_, err := c.ControllerClient().ControllerExpandVolume(within(t, patience),
					&csipb.ControllerExpandVolumeRequest{VolumeId: "v"})
				return err
			},
		},
		"usage negative": {
			"NodeGetVolumeStats", &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{{Used: -1}}},
			func(c *csi.Driver) error {
				_, err := c.NodeClient().NodeGetVolumeStats(within(t, patience), &csipb.NodeGetVolumeStatsRequest{VolumeId: "v"})
				return err
			},
		},
	} {
		t.Run(what, func(t *testing.T) {
			d := csitest.Start(t, csitest.Full())
			c := dial(t, d)
			d.OnCall(test.method, always(csitest.Action{Answer: test.answer}))
			if err := test.call(c); !errors.Is(err, csi.ErrAnswer) {
				t.Errorf("%v, want ErrAnswer", err)
			}
		})
	}
}

func nodeInfo(t *testing.T) func(c *csi.Driver) error {
	return func(c *csi.Driver) error {
		_, err := c.NodeInfo(within(t, patience))
		return err
	}
}

func TestLongestAnswersAreTaken(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	d.OnCall("NodeGetInfo", always(csitest.Action{Answer: &csipb.NodeGetInfoResponse{NodeId: strings.Repeat("x", 256)}}))
	if _, err := c.NodeInfo(within(t, patience)); err != nil {
		t.Error(err)
	}
	d.OnCall("CreateVolume", always(csitest.Action{Answer: created(func(v *csipb.Volume) {
		v.VolumeId, v.VolumeContext = strings.Repeat("x", 1024), map[string]string{"k": strings.Repeat("x", 65535)}
	})}))
	if err := create(t, c, "v"); err != nil {
		t.Error(err)
	}
}

// TestTextsMayHaveLines: a volume's context may contain newlines, and a list's token is the driver's own affair.
func TestTextsMayHaveLines(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	d.OnCall("CreateVolume",
		always(csitest.Action{Answer: created(func(v *csipb.Volume) { v.VolumeContext = map[string]string{"k": "a\nb"} })}))
	if err := create(t, c, "v"); err != nil {
		t.Error(err)
	}
	d.OnCall("ListVolumes", always(csitest.Action{Answer: &csipb.ListVolumesResponse{NextToken: "a\x00"}}))
	if _, err := c.ControllerClient().ListVolumes(within(t, patience), &csipb.ListVolumesRequest{}); err != nil {
		t.Error(err)
	}
}

// TestIDsByHand: an id that a user wrote into an object, and that no driver can have returned, does not reach the
// driver; undoing what exists already is still allowed.
func TestIDsByHand(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	const bad = "v\nid"
	for what, call := range map[string]func() error{
		"attach": func() error {
			_, err := c.ControllerClient().ControllerPublishVolume(within(t, patience),
				&csipb.ControllerPublishVolumeRequest{VolumeId: bad, NodeId: "n"})
			return err
		},
		"attach to a node": func() error {
			_, err := c.ControllerClient().ControllerPublishVolume(within(t, patience),
				&csipb.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n\x00"})
			return err
		},
		"stage": func() error {
			_, err := c.NodeClient().NodeStageVolume(within(t, patience), &csipb.NodeStageVolumeRequest{VolumeId: bad})
			return err
		},
		"copy": func() error {
			_, err := c.ControllerClient().CreateVolume(within(t, patience),
				&csipb.CreateVolumeRequest{Name: "copy", VolumeContentSource: &csipb.VolumeContentSource{
					Type: &csipb.VolumeContentSource_Volume{Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: bad}},
				}})
			return err
		},
	} {
		if err := call(); !errors.Is(err, csi.ErrID) || csi.OutcomeOf(err) != volume.Failed ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want ErrID, final", what, err)
		}
	}
	if calls := d.Calls(); len(calls) > 0 {
		t.Errorf("the driver heard of it: %v", calls)
	}
	if _, err := c.ControllerClient().ControllerUnpublishVolume(within(t, patience),
		&csipb.ControllerUnpublishVolumeRequest{VolumeId: bad}); errors.Is(err, csi.ErrID) {
		t.Errorf("detach: %v", err)
	}
}

func TestOutcomes(t *testing.T) {
	for err, want := range map[error]volume.Outcome{
		nil: volume.Done, errors.New("plain"): volume.Unknown,
		fmt.Errorf("create: %w", status.Error(codes.Aborted, "")):         volume.Unknown,
		fmt.Errorf("create: %w", status.Error(codes.InvalidArgument, "")): volume.Failed,
		fmt.Errorf("create: %w", csi.ErrAnswer):                           volume.Unknown,
	} {
		if got := csi.OutcomeOf(err); got != want {
			t.Errorf("OutcomeOf(%v) = %v, want %v", err, got, want)
		}
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		want := volume.Failed
		switch code {
		case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
			want = volume.Unknown
		}
		if got := csi.OutcomeOf(status.Error(code, "x")); got != want {
			t.Errorf("OutcomeOf(%v) = %v, want %v", code, got, want)
		}
	}
}

// TestAnswerOf: an error of a driver has a code, one of this program has none.
func TestAnswerOf(t *testing.T) {
	for err, want := range map[error]volume.Answer{
		nil:                 {Outcome: volume.Done, Code: "OK"},
		errors.New("plain"): {Outcome: volume.Unknown, Text: "Unknown: plain"},
		status.Error(codes.NotFound, "no\nvolume"): {
			Outcome: volume.Failed, Code: "NotFound", Number: 5, Text: "NotFound: no volume",
		},
		fmt.Errorf("detach: %w", status.Error(codes.Aborted, "busy")): {
			Outcome: volume.Unknown, Code: "Aborted", Number: 10, Text: "Aborted: detach: rpc error: code = Aborted desc = busy",
		},
	} {
		if got := csi.AnswerOf(err); got != want {
			t.Errorf("AnswerOf(%v) = %+v, want %+v", err, got, want)
		}
	}
}

func TestCode(t *testing.T) {
	for want, err := range map[codes.Code]error{
		codes.OK: nil, codes.Unknown: errors.New("plain"),
		codes.NotFound: fmt.Errorf("x: %w", status.Error(codes.NotFound, "")),
	} {
		if got := csi.Code(err); got != want {
			t.Errorf("Code(%v) = %v, want %v", err, got, want)
		}
	}
}

func TestDescribe(t *testing.T) {
	for in, want := range map[string]string{
		"no room":          "Internal: no room",
		"a\n\n b\tc":       "Internal: a b c",
		"\x1b[2J\x00\xffx": "Internal: [2J ?x",
	} {
		if got := csi.Describe(status.Error(codes.Internal, in)); got != want {
			t.Errorf("Describe(%q) = %q, want %q", in, got, want)
		}
	}
	if got := csi.Describe(nil); got != "" {
		t.Errorf("Describe(nil) = %q", got)
	}
}
