package doctor

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/workshop/finding"
)

// The proxy adds what the bundled driver does not have: the health of volumes in the controller, the conditions of CSI
// 1.12, and the metadata of snapshots.

// extra answers calls that the bundled driver does not have, and refuses what it does not look at.
func (c *call) extra() (answer proto.Message, answered bool, err error) {
	switch r := c.req.(type) {
	case *csipb.ControllerListVolumeHealthRequest:
		if r.GetStartingToken() != "" {
			err = status.Error(codes.Aborted, "this page does not exist")
		}
		return &csipb.ControllerListVolumeHealthResponse{}, true, err
	case *csipb.ControllerGetVolumeHealthRequest:
		_, err := c.ask(csipb.Controller_ControllerGetVolume_FullMethodName,
			&csipb.ControllerGetVolumeRequest{VolumeId: r.GetVolumeId()})
		return &csipb.ControllerGetVolumeHealthResponse{VolumeHealth: &csipb.VolumeHealth{VolumeId: r.GetVolumeId()}},
			true, err
	}
	return nil, false, nil
}

// extend adds to an answer of the bundled driver what it does not say.
func (c *call) extend(answer proto.Message) error {
	switch r := answer.(type) {
	case *csipb.GetPluginCapabilitiesResponse:
		r.Capabilities = append(r.Capabilities, csi.PluginCapabilities{SnapshotMetadata: true}.Answer().Capabilities...)
	case *csipb.ControllerGetCapabilitiesResponse:
		r.Capabilities = append(r.Capabilities, csi.ControllerCapabilities{
			GetVolumeHealth: true, ListVolumeHealth: true, VolumeCondition: true,
		}.Answer().Capabilities...)
	case *csipb.NodeGetCapabilitiesResponse:
		r.Capabilities = append(r.Capabilities, csi.NodeCapabilities{VolumeCondition: true}.Answer().Capabilities...)
	case *csipb.NodeGetVolumeStatsResponse:
		return normal(r)
	case *csipb.ControllerGetVolumeResponse:
		return normal(r.GetStatus())
	case *csipb.ListVolumesResponse:
		for _, e := range r.GetEntries() {
			if err := normal(e.GetStatus()); err != nil {
				return err
			}
		}
	}
	return nil
}

// normal adds a condition to a message.
func normal(m proto.Message) error {
	condition := m.ProtoReflect().New().Interface()
	if err := csitest.Older(condition, `{"volume_condition":{"message":"all is well"}}`); err != nil {
		return err
	}
	proto.Merge(m, condition)
	return nil
}

// metadata is a snapshot metadata service: all of each snapshot was written, and has changed.
type metadata struct {
	csipb.UnimplementedSnapshotMetadataServer
	*proxy
}

// metadataAnswer is what the service says, in pages.
type metadataAnswer struct {
	from     int64
	most     int
	capacity int64
	pages    [][]*csipb.BlockMetadata
	err      error
}

// GetMetadataAllocated names the blocks of a snapshot.
func (m metadata) GetMetadataAllocated(
	r *csipb.GetMetadataAllocatedRequest, stream csipb.SnapshotMetadata_GetMetadataAllocatedServer,
) error {
	a := &metadataAnswer{from: r.GetStartingOffset(), most: int(r.GetMaxResults())}
	m.answer(a, stream, csipb.SnapshotMetadata_GetMetadataAllocated_FullMethodName, r.GetSnapshotId())
	for _, page := range a.pages {
		if err := stream.Send(&csipb.GetMetadataAllocatedResponse{
			BlockMetadataType: csipb.BlockMetadataType_FIXED_LENGTH, VolumeCapacityBytes: a.capacity, BlockMetadata: page,
		}); err != nil {
			return err
		}
	}
	return a.err
}

// GetMetadataDelta names the blocks in which two snapshots differ.
func (m metadata) GetMetadataDelta(
	r *csipb.GetMetadataDeltaRequest, stream csipb.SnapshotMetadata_GetMetadataDeltaServer,
) error {
	a := &metadataAnswer{from: r.GetStartingOffset(), most: int(r.GetMaxResults())}
	m.answer(a, stream, csipb.SnapshotMetadata_GetMetadataDelta_FullMethodName, r.GetBaseSnapshotId(),
		r.GetTargetSnapshotId())
	for _, page := range a.pages {
		if err := stream.Send(&csipb.GetMetadataDeltaResponse{
			BlockMetadataType: csipb.BlockMetadataType_FIXED_LENGTH, VolumeCapacityBytes: a.capacity, BlockMetadata: page,
		}); err != nil {
			return err
		}
	}
	return a.err
}

func (m metadata) answer(a *metadataAnswer, stream grpc.ServerStream, method string, ids ...string) {
	c := &call{proxy: m.proxy, ctx: stream.Context(), method: method}
	if a.err = m.note(method); a.err == nil {
		a.err = a.read(c, ids)
	}
	if m.blocks != nil {
		m.blocks(a)
	}
}

// read makes blocks of a MiB of all that is behind the beginning.
func (a *metadataAnswer) read(c *call, ids []string) error {
	const size = 1 << 20
	if slices.Contains(ids, "") {
		return status.Error(codes.InvalidArgument, "a snapshot is required")
	}
	for _, id := range ids {
		r, err := c.ask(csipb.Controller_GetSnapshot_FullMethodName, &csipb.GetSnapshotRequest{SnapshotId: id})
		if err != nil {
			return err
		}
		a.capacity = r.(*csipb.GetSnapshotResponse).GetSnapshot().GetSizeBytes()
	}
	if a.from < 0 || a.from > a.capacity {
		return status.Error(codes.OutOfRange, "there is nothing")
	}
	var all []*csipb.BlockMetadata
	for at := a.from / size * size; at < a.capacity; at += size {
		all = append(all, &csipb.BlockMetadata{ByteOffset: at, SizeBytes: size})
	}
	if a.most == 0 {
		a.most = len(all)
	}
	a.pages = slices.Collect(slices.Chunk(all, a.most))
	return nil
}

// envCalls names the directory in which the proxy notes the methods that were called, by files of their names.
const envCalls = "DOCTOR_TEST_CALLS"

// note notes a call.
func (p *proxy) note(method string) error {
	if dir := os.Getenv(envCalls); dir != "" {
		return os.WriteFile(filepath.Join(dir, path.Base(method)), nil, 0o600)
	}
	return nil
}

// TestEachCall: a driver that promises all that CSI has, and keeps it, passes; each of CSI's calls is made.
func TestEachCall(t *testing.T) {
	t.Parallel()
	d := patient(t, "nothing is wrong")
	calls := t.TempDir()
	d.Env = append(d.Env, envCalls+"="+calls)
	d.Only = slices.DeleteFunc(Checks(), func(check string) bool { return slices.Contains(expensive(), check) })
	r, err := examined(t, d)
	warned, failed := found(r)
	if delete(warned, "grown"); err != nil || len(warned)+len(failed) > 0 {
		t.Errorf("%v\n%s", err, listed(r))
	}
	for _, check := range []string{
		"volume-health", "list-health", "node-health", "storage-health", "volume-condition", "get-volume", "get-snapshot",
		"snapshot-topology", "snapshot-metadata",
	} {
		if !slices.ContainsFunc(r.Findings, func(f finding.Finding) bool { return f.Check == check }) {
			t.Errorf("%s was not checked", check)
		}
	}
	services, methods := csipb.File_csi_proto.Services(), 0
	for i := range services.Len() {
		all := services.Get(i).Methods()
		for j := range all.Len() {
			methods++
			if _, err := os.Stat(filepath.Join(calls, string(all.Get(j).Name()))); err != nil {
				t.Errorf("%s was not called: %v", all.Get(j).FullName(), err)
			}
		}
	}
	if methods != 36 {
		t.Errorf("CSI has %d calls", methods)
	}
}

func healthFaults() map[string]fault {
	return map[string]fault{
		"the health of another volume": {check: "volume-health", spoil: spoils{
			"ControllerGetVolumeHealth": on(func(_ *call, r *csipb.ControllerGetVolumeHealthResponse) {
				r.VolumeHealth.VolumeId += "0"
			}),
		}},
		"a list of what is well": {check: "list-health", spoil: spoils{
			"ControllerListVolumeHealth": on(func(_ *call, r *csipb.ControllerListVolumeHealthResponse) {
				r.Entries = []*csipb.VolumeHealth{{VolumeId: "v"}}
			}),
		}},
		"a problem without a reason": {check: "node-health", spoil: spoils{
			"NodeGetVolumeHealth": on(func(_ *call, r *csipb.NodeGetVolumeHealthResponse) {
				r.VolumeHealth.HealthStatuses = []*csipb.VolumeHealth_VolumeHealthEntry{
					{Status: csipb.VolumeHealthErrorType_DEGRADED, Message: "one path is left"},
				}
			}),
		}},
		"a slow storage": {check: "storage-health", level: finding.Warn, spoil: spoils{
			"NodeGetStorageHealth": on(func(_ *call, r *csipb.NodeGetStorageHealthResponse) {
				r.BackendHealth = []*csipb.NodeGetStorageHealthResponse_StorageBackendHealth{
					{Status: csipb.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "Slow"},
				}
			}),
		}},
		"no condition": {check: "volume-condition", spoil: spoils{
			"NodeGetVolumeStats": on(func(_ *call, r *csipb.NodeGetVolumeStatsResponse) { r.ProtoReflect().SetUnknown(nil) }),
		}},
	}
}

func getFaults() map[string]fault {
	return map[string]fault{
		"a volume that has shrunk": {check: "get-volume", spoil: spoils{
			"ControllerGetVolume": on(func(_ *call, r *csipb.ControllerGetVolumeResponse) { r.Volume.CapacityBytes /= 2 }),
		}},
		"something else is confirmed": {check: "validate", level: finding.Warn, spoil: spoils{
			"ValidateVolumeCapabilities": on(func(_ *call, r *csipb.ValidateVolumeCapabilitiesResponse) {
				r.Confirmed.VolumeCapabilities = []*csipb.VolumeCapability{{}}
			}),
		}},
		"a snapshot of another size": {check: "get-snapshot", spoil: spoils{
			"GetSnapshot": on(func(_ *call, r *csipb.GetSnapshotResponse) { r.Snapshot.SizeBytes++ }),
		}},
		"a deleted snapshot that is unavailable": {check: "get-snapshot", also: []string{"unknown-ids"}, spoil: spoils{
			"GetSnapshot": instead(codes.NotFound, codes.Internal),
		}},
		"snapshots wherever there is room": {check: "snapshot-topology", spoil: spoils{
			"CreateSnapshot": func(c *call) (proto.Message, error) {
				c.req.(*csipb.CreateSnapshotRequest).AccessibilityRequirements = nil
				return c.pass()
			},
		}},
	}
}

func metadataFaults() map[string]fault {
	blocks := func(change func(a *metadataAnswer)) fault {
		return fault{check: "snapshot-metadata", blocks: change}
	}
	return map[string]fault{
		"blocks that overlap": blocks(func(a *metadataAnswer) {
			if len(a.pages) > 0 {
				a.pages = append(a.pages, a.pages[0])
			}
		}),
		"a block is left out": blocks(func(a *metadataAnswer) {
			if len(a.pages) > 0 {
				a.pages[0] = a.pages[0][1:]
			}
		}),
		"more blocks than were asked for": blocks(func(a *metadataAnswer) {
			a.pages = [][]*csipb.BlockMetadata{slices.Concat(a.pages...)}
		}),
		"any snapshot is known": blocks(func(a *metadataAnswer) {
			if status.Code(a.err) == codes.NotFound {
				a.err = nil
			}
		}),
	}
}

// TestReading: blocks come in order, once, within the volume and the request, and without gaps where something was
// written.
func TestReading(t *testing.T) {
	t.Parallel()
	const fixed, variable = csipb.BlockMetadataType_FIXED_LENGTH, csipb.BlockMetadataType_VARIABLE_LENGTH
	answer := func(kind csipb.BlockMetadataType, numbers ...int64) *csipb.GetMetadataDeltaResponse {
		a := &csipb.GetMetadataDeltaResponse{BlockMetadataType: kind, VolumeCapacityBytes: 100}
		for pair := range slices.Chunk(numbers, 2) {
			a.BlockMetadata = append(a.BlockMetadata, &csipb.BlockMetadata{ByteOffset: pair[0], SizeBytes: pair[1]})
		}
		return a
	}
	for name, c := range map[string]struct {
		from    int64
		most    int32
		answers []*csipb.GetMetadataDeltaResponse
		want    string
	}{
		"as it should be":   {answers: []*csipb.GetMetadataDeltaResponse{answer(fixed, 0, 10), answer(fixed, 10, 10)}},
		"of any length":     {answers: []*csipb.GetMetadataDeltaResponse{answer(variable, 0, 15, 15, 5, 50, 50)}},
		"from the middle":   {from: 15, most: 1, answers: []*csipb.GetMetadataDeltaResponse{answer(fixed, 10, 10)}},
		"nothing":           {want: "what was written at 0 is in no block"},
		"an end that lacks": {answers: []*csipb.GetMetadataDeltaResponse{answer(fixed, 0, 10)}, want: "at 10 is in no block"},
		"a gap": {
			answers: []*csipb.GetMetadataDeltaResponse{answer(fixed, 0, 5, 10, 5, 15, 5)}, want: "at 5 is in no block",
		},
		"no type": {
			answers: []*csipb.GetMetadataDeltaResponse{answer(csipb.BlockMetadataType_UNKNOWN, 0, 20)}, want: "UNKNOWN",
		},
		"another type": {
			answers: []*csipb.GetMetadataDeltaResponse{answer(fixed, 0, 10), answer(variable, 10, 10)}, want: "differs",
		},
		"too many at a time": {
			most: 1, answers: []*csipb.GetMetadataDeltaResponse{answer(fixed, 0, 10, 10, 10)}, want: "max_results is 1",
		},
		"an empty block": {answers: []*csipb.GetMetadataDeltaResponse{answer(fixed, 0, 0)}, want: "at 0 has no bytes"},
		"backwards": {
			answers: []*csipb.GetMetadataDeltaResponse{answer(fixed, 10, 10), answer(fixed, 0, 10)}, want: "ends at 20",
		},
		"before the request": {
			from: 10, answers: []*csipb.GetMetadataDeltaResponse{answer(fixed, 0, 10)}, want: "starting_offset is 10",
		},
		"behind the volume": {
			answers: []*csipb.GetMetadataDeltaResponse{answer(fixed, 0, 101)}, want: "volume_capacity_bytes is 100",
		},
		"of two lengths": {
			answers: []*csipb.GetMetadataDeltaResponse{answer(fixed, 0, 10, 10, 11)}, want: "blocks have 10 and 11 bytes",
		},
	} {
		r := newReading(c.from, c.most)
		for _, a := range c.answers {
			r.see(a)
		}
		if got := r.lacks(20); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestProblemsVerdict: what a driver says is wrong must have the form of CSI; something that is new and idle is well.
func TestProblemsVerdict(t *testing.T) {
	t.Parallel()
	slow := problem{status: "DEGRADED", reason: "Slow"}
	block := slow
	block.of = "block"
	for name, c := range map[string]struct {
		all  []problem
		want finding.Level
	}{
		"nothing":                {nil, finding.Pass},
		"one":                    {[]problem{slow}, finding.Warn},
		"of two kinds":           {[]problem{slow, block}, finding.Warn},
		"of a newer CSI":         {[]problem{{status: "4", reason: "Slow"}}, finding.Warn},
		"twice":                  {[]problem{slow, slow}, finding.Fail},
		"without a status":       {[]problem{{status: "UNKNOWN_VOLUME_HEALTH_TYPE", reason: "Slow"}}, finding.Fail},
		"without a reason":       {[]problem{{status: "DEGRADED"}}, finding.Fail},
		"with words as reason":   {[]problem{{status: "DEGRADED", reason: "no quorum"}}, finding.Fail},
		"with a constant's name": {[]problem{{status: "DEGRADED", reason: "NO_QUORUM"}}, finding.Fail},
	} {
		if v := problemsVerdict("the volume", c.all); v.level != c.want {
			t.Errorf("%s: %s %s", name, v.level, v.message)
		}
	}
}
