package csitest

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that rawCodec asks for
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// Action says how one call goes wrong. The zero Action lets it go well.
type Action struct {
	// After has the driver do its work before anything else happens.
	After bool
	// Err is the driver's answer.
	Err error
	// Hang keeps the answer back until the caller gives up or the driver dies.
	Hang bool
	// Kill ends the driver before it answers.
	Kill bool
	// Answer takes the place of the driver's: a message, or Raw.
	Answer any
}

// none says that nothing goes wrong. Actions are not comparable when their
// answers are not.
func (a Action) none() bool { return a.Err == nil && !a.Hang && !a.Kill && a.Answer == nil }

// Raw is an answer that need not be a message.
type Raw []byte

// Call is one call that reached the driver.
type Call struct {
	// Method is the name without the service, "CreateVolume".
	Method string
	// Request is a copy.
	Request proto.Message
}

// script is what a test says about calls, and what came of it.
type script struct {
	mu       sync.Mutex
	on       map[string]func(n int, req any) Action
	count    map[string]int
	calls    []Call
	busy     map[string]string
	overlaps []string
}

func newScript() script {
	return script{on: map[string]func(int, any) Action{}, count: map[string]int{}, busy: map[string]string{}}
}

// OnCall has f decide how calls of a method go; n counts them from 1 since the
// driver was started. A nil f lets them go well again. f may be called
// concurrently.
func (d *Driver) OnCall(method string, f func(n int, req any) Action) {
	d.script.mu.Lock()
	defer d.script.mu.Unlock()
	d.script.on[method] = f
}

// Calls returns the calls so far in order of arrival, without those by which a
// caller finds out what the driver is.
func (d *Driver) Calls() []Call {
	d.script.mu.Lock()
	defer d.script.mu.Unlock()
	return slices.Clone(d.script.calls)
}

// Called compares Calls, whole, with the requests wanted.
func (d *Driver) Called(want ...proto.Message) {
	d.t.Helper()
	var got []proto.Message
	for _, c := range d.Calls() {
		got = append(got, c.Request)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(), cmpopts.EquateEmpty()); diff != "" {
		d.t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// Methods returns the names of Calls.
func (d *Driver) Methods() []string {
	var out []string
	for _, c := range d.Calls() {
		out = append(out, c.Method)
	}
	return out
}

// Overlaps tells of calls that came while another one for the same volume was
// under way; a caller has to avoid them.
func (d *Driver) Overlaps() []string {
	d.script.mu.Lock()
	defer d.script.mu.Unlock()
	return slices.Clone(d.script.overlaps)
}

// enter notes a call, and returns how it shall go and what to do at its end.
func (s *script) enter(method, key string, req any) (Action, func()) {
	f, n, leave := s.note(method, key, req)
	if f == nil {
		return Action{}, leave
	}
	return f(n, req), leave
}

func (s *script) note(method, key string, req any) (f func(int, any) Action, n int, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[method]++
	if m, ok := req.(proto.Message); ok && !isQuestion(method) {
		s.calls = append(s.calls, Call{Method: method, Request: proto.Clone(m)})
	}
	leave = func() {}
	if other, taken := s.busy[key]; taken {
		s.overlaps = append(s.overlaps, fmt.Sprintf("%s during %s of %s", method, other, key))
	} else if key != "" {
		s.busy[key] = method
		leave = func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.busy, key)
		}
	}
	return s.on[method], s.count[method], leave
}

func isQuestion(method string) bool {
	return slices.Contains([]string{
		"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities", "NodeGetCapabilities",
	}, method)
}

// intercept plays the script around each call.
func (d *Driver) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, work grpc.UnaryHandler,
) (any, error) {
	method := path.Base(info.FullMethod)
	action, leave := d.script.enter(method, volumeKey(req), req)
	defer leave()
	var answer any
	if action.After || action.none() {
		var err error
		if answer, err = d.perform(ctx, method, req, work); err != nil {
			return nil, err
		}
	}
	switch {
	case action.Hang:
		d.mu.Lock()
		stopped := d.stopped
		d.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-stopped:
		}
		return nil, status.Error(codes.Canceled, "the driver hung")
	case action.Kill:
		d.Kill()
		<-ctx.Done()
		return nil, status.Error(codes.Canceled, "the driver died")
	case action.Err != nil:
		return nil, action.Err
	case action.Answer != nil:
		return action.Answer, nil
	}
	return answer, nil
}

// perform does the work that a call asks for, if the driver can.
func (d *Driver) perform(ctx context.Context, method string, req any, work grpc.UnaryHandler) (any, error) {
	if able, known := d.abilities()[method]; known && !able {
		return nil, status.Errorf(codes.Unimplemented, "%s is not supported", method)
	}
	return work(ctx, req)
}

func (d *Driver) abilities() map[string]bool {
	c, n := d.config.Controller, d.config.Node
	all := map[string]bool{
		"CreateVolume": c.CreateDelete, "DeleteVolume": c.CreateDelete,
		"ControllerPublishVolume": c.PublishUnpublish, "ControllerUnpublishVolume": c.PublishUnpublish,
		"ListVolumes": c.ListVolumes, "GetCapacity": c.GetCapacity, "ControllerExpandVolume": c.Expand,
		"ControllerGetVolume": c.GetVolume, "ControllerModifyVolume": c.Modify,
		"NodeStageVolume": n.StageUnstage, "NodeUnstageVolume": n.StageUnstage,
		"NodeExpandVolume": n.Expand, "NodeGetVolumeStats": n.Stats,
	}
	if !d.config.Plugin.ControllerService {
		for _, method := range slices.Collect(maps.Keys(all)) {
			all[method] = all[method] && method[:4] == "Node"
		}
	}
	return all
}

func volumeKey(req any) string {
	switch r := req.(type) {
	case *csipb.CreateVolumeRequest:
		return "name " + r.GetName()
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	}
	return ""
}

// rawCodec writes Raw as it is, and everything else as gRPC does.
type rawCodec struct{}

// Name is that of the codec whose place it takes.
func (rawCodec) Name() string { return "proto" }

// Marshal encodes an answer.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.(Raw); ok {
		return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
	}
	return encoding.GetCodecV2("proto").Marshal(v)
}

// Unmarshal decodes a request.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}
