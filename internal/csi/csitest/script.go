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
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that rawCodec wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"volplane.dev/volplane/internal/csi"
)

// Action says how one call fails. The zero Action lets it succeed.
type Action struct {
	// After makes the driver do its work before the failure.
	After bool
	// Err is the error that the driver returns.
	Err error
	// Hang delays the answer until the caller gives up or the driver dies.
	Hang bool
	// Kill kills the driver before it answers.
	Kill bool
	// Answer replaces the driver's answer: a message, or Raw.
	Answer any
}

// isZero says that the call succeeds. Actions cannot be compared, because their answers cannot.
func (a Action) isZero() bool { return a.Err == nil && !a.Hang && !a.Kill && a.Answer == nil }

// Raw is an answer in bytes, which need not be a valid message.
type Raw []byte

// Call is one call that reached the driver.
type Call struct {
	// Method is the method's name without the service, "CreateVolume".
	Method string
	// Request is a copy.
	Request proto.Message
}

// script holds the failures that a test has ordered, and the calls so far.
type script struct {
	mu       sync.Mutex
	each     func(method string, req proto.Message) Action
	on       map[string]func(n int, req any) Action
	count    map[string]int
	calls    []Call
	busy     map[string]string
	overlaps []string
}

func newScript() script {
	return script{on: map[string]func(int, any) Action{}, count: map[string]int{}, busy: map[string]string{}}
}

// OnCall makes f decide how each call of a method ends; n counts the calls from 1 since Start. A
// nil f lets them succeed again. f may be called concurrently.
func (d *Driver) OnCall(method string, f func(n int, req any) Action) {
	d.script.mu.Lock()
	defer d.script.mu.Unlock()
	d.script.on[method] = f
}

// OnEach makes f decide how each call ends whose method has no function of its own, except those of the identity
// service and others that only read capabilities.
func (d *Driver) OnEach(f func(method string, req proto.Message) Action) {
	d.script.mu.Lock()
	defer d.script.mu.Unlock()
	d.script.each = f
}

// Calls returns the calls so far in order of arrival, without those of the identity service and
// others that only read.
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

// Overlaps describes calls that arrived while another one for the same volume was in flight; callers must avoid that.
func (d *Driver) Overlaps() []string {
	d.script.mu.Lock()
	defer d.script.mu.Unlock()
	return slices.Clone(d.script.overlaps)
}

// enter records a call and returns its Action and a function to call at its end.
func (s *script) enter(method, key string, req any) (Action, func()) {
	f, n, leave := s.record(method, key, req)
	if f == nil {
		return Action{}, leave
	}
	return f(n, req), leave
}

func (s *script) record(method, key string, req any) (f func(int, any) Action, n int, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[method]++
	if m, ok := req.(proto.Message); ok && !isReadOnly(method) {
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
	f = s.on[method]
	if each := s.each; f == nil && each != nil && !isReadOnly(method) {
		f = func(_ int, req any) Action { return each(method, req.(proto.Message)) }
	}
	return f, s.count[method], leave
}

func isReadOnly(method string) bool {
	return slices.Contains([]string{
		"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities", "NodeGetCapabilities",
		"GroupControllerGetCapabilities",
	}, method)
}

// intercept applies the script to each call.
func (d *Driver) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, work grpc.UnaryHandler,
) (any, error) {
	method := path.Base(info.FullMethod)
	action, leave := d.script.enter(method, volumeKey(req), req)
	defer leave()
	var answer any
	if action.After || action.isZero() {
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
			// Both sides have the same deadline. An answer that arrives before the caller has noticed it must not
			// differ from the caller's own error.
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-stopped:
			return nil, status.Error(codes.Canceled, "the driver hung")
		}
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

// perform does the work of a call if the driver has the capability, and the request what CSI requires.
func (d *Driver) perform(ctx context.Context, method string, req any, work grpc.UnaryHandler) (any, error) {
	if able, known := d.abilities()[method]; known && !able {
		return nil, status.Errorf(codes.Unimplemented, "%s is not supported", method)
	}
	return csi.Complete(ctx, req, nil, work)
}

func (d *Driver) abilities() map[string]bool {
	c, n := d.config.Controller, d.config.Node
	all := map[string]bool{
		"CreateVolume": c.CreateDelete, "DeleteVolume": c.CreateDelete,
		"ControllerPublishVolume": c.PublishUnpublish, "ControllerUnpublishVolume": c.PublishUnpublish,
		"ListVolumes": c.ListVolumes, "GetCapacity": c.GetCapacity, "ControllerExpandVolume": c.Expand,
		"ControllerGetVolume": c.GetVolume, "ControllerModifyVolume": c.Modify,
		"CreateSnapshot": c.Snapshot, "DeleteSnapshot": c.Snapshot, "ListSnapshots": c.ListSnapshots,
		"GetSnapshot":                    c.GetSnapshot,
		"GroupControllerGetCapabilities": d.config.Plugin.GroupController,
		"CreateVolumeGroupSnapshot":      d.config.Group.Snapshot, "GetVolumeGroupSnapshot": d.config.Group.Snapshot,
		"DeleteVolumeGroupSnapshot": d.config.Group.Snapshot,
		"NodeStageVolume":           n.StageUnstage, "NodeUnstageVolume": n.StageUnstage,
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

// Name returns the name of the codec that rawCodec replaces.
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
