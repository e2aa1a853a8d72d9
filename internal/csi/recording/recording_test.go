package recording_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/csi/recording"
)

func header() recording.Header {
	return recording.Header{
		Driver: "a.example.com", DriverVersion: "1", RecordedBy: "dev", RecordedAt: time.Unix(0, 0).UTC(),
	}
}

// play serves a recording.
func play(t *testing.T, text string) (p *recording.Player, socket string) {
	t.Helper()
	r, err := recording.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	p, unplayable := recording.NewPlayer(r)
	if unplayable > 0 {
		t.Errorf("%d calls cannot be played", unplayable)
	}
	dir, err := os.MkdirTemp("", "r")
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "csi.sock")
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, socket) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return p, socket
}

// life makes the same calls whether the driver or a recording answers, and returns the result of each.
func life(t *testing.T, d *csi.Driver) []string {
	t.Helper()
	var out []string
	see := func(answer proto.Message, err error) {
		out = append(out, fmt.Sprintf("%s %s", csi.NewMemory(nil).Shown(answer), csi.Describe(err)))
	}
	create := &csipb.CreateVolumeRequest{
		Name: "v<&>", Secrets: map[string]string{"password": "hunter22"}, Parameters: map[string]string{"as": "x-hunter22"},
		VolumeCapabilities: []*csipb.VolumeCapability{
			csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, true, "", nil),
		},
	}
	ctx, c := t.Context(), d.ControllerClient()
	for range 3 {
		see(c.CreateVolume(ctx, create))
	}
	see(c.ControllerGetVolume(ctx, &csipb.ControllerGetVolumeRequest{VolumeId: "absent"}))
	see(d.NodeClient().NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{}))
	see(c.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: "id-v<&>"}))
	return out
}

// TestRoundTrip: callers of a recording get the driver's answers, in the same order, and the file contains no secret.
func TestRoundTrip(t *testing.T) {
	driver := csitest.Start(t, csitest.Full())
	driver.OnCall("CreateVolume", func(n int, _ any) csitest.Action {
		if n == 1 {
			return csitest.Action{Err: status.Error(codes.Unavailable, "not yet, hunter22")}
		}
		return csitest.Action{}
	})
	var file bytes.Buffer
	w, err := recording.NewWriter(&file, header())
	if err != nil {
		t.Fatal(err)
	}
	d := dial(t, driver.Socket, csi.WithTrace(func(c csi.Call) {
		if err := w.Add(c); err != nil {
			t.Error(err)
		}
	}))
	want := life(t, d)
	if strings.Contains(file.String(), "hunter22") || !strings.Contains(want[0], "not yet, ***") {
		t.Errorf("%q, the file has %s", want, &file)
	}
	_, socket := play(t, file.String())
	played := dial(t, socket)
	if played.Name != driver.Name() || played.Controller != d.Controller || played.Node != d.Node {
		t.Errorf("the player says that it is %+v", played)
	}
	if diff := cmp.Diff(want, life(t, played)); diff != "" {
		t.Errorf("the player and the driver differ (-driver +player):\n%s", diff)
	}
}

func dial(t *testing.T, socket string, o ...csi.Option) *csi.Driver {
	t.Helper()
	d, err := csi.Dial(t.Context(), socket, o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

const deleteVolume = csipb.Controller_DeleteVolume_FullMethodName

const played = `{"volplane":"driver recording","version":1,"driver":"a.example.com"}
{"method":"/csi.v1.Identity/GetPluginInfo","code":"OK","request":{},"answer":{"name":"a.example.com"}}
{"method":"/csi.v1.Controller/DeleteVolume","code":"OK","request":{"volume_id":"a"},"answer":{}}
{"method":"/csi.v1.Controller/DeleteVolume","code":"Internal","error":"no","request":{"volume_id":"b","secrets":{"k":"***"}}}
{"method":"/csi.v1.Controller/DeleteVolume","code":"Code(77)","seconds":0.001,"request":{"volume_id":"b","secrets":{"k":"***"}}}
`

// TestPlayer: the answers in their order, and the errors for requests that were not recorded.
func TestPlayer(t *testing.T) {
	p, socket := play(t, played)
	p.Speed = 1
	d := dial(t, socket, csi.WithNameOnly())
	secret := map[string]string{"k": "hunter22"}
	for i, test := range []struct {
		method  string
		request proto.Message
		want    string
	}{
		{deleteVolume, &csipb.DeleteVolumeRequest{VolumeId: "a"}, ""},
		{deleteVolume, &csipb.DeleteVolumeRequest{VolumeId: "b", Secrets: secret}, "Internal: no"},
		{deleteVolume, &csipb.DeleteVolumeRequest{VolumeId: "b", Secrets: secret}, "Unknown: "},
		{deleteVolume, &csipb.DeleteVolumeRequest{VolumeId: "b", Secrets: secret}, "Unknown: "},
		{deleteVolume, &csipb.DeleteVolumeRequest{VolumeId: "a"}, ""},
		{
			deleteVolume, &csipb.DeleteVolumeRequest{VolumeId: "b"},
			`InvalidArgument: the recording has no DeleteVolume with this request; the nearest one differs: volume_id: ` +
				`recorded "a", asked "b"`,
		},
		{
			deleteVolume, &csipb.DeleteVolumeRequest{VolumeId: "c", Secrets: secret},
			`InvalidArgument: the recording has no DeleteVolume with this request; the nearest one differs: volume_id: ` +
				`recorded "b", asked "c"`,
		},
		{
			csipb.Controller_ListVolumes_FullMethodName, &csipb.ListVolumesRequest{},
			"Unimplemented: the recording has no call of ListVolumes",
		},
	} {
		_, answer := csi.NewMessages(test.method)
		if got := csi.Describe(d.Call(t.Context(), test.method, test.request, answer)); got != test.want {
			t.Errorf("%d: %q, want %q", i, got, test.want)
		}
	}
}

// TestRead: which files are recordings, and that the last line may be missing its end.
func TestRead(t *testing.T) {
	first, rest, _ := strings.Cut(played, "\n")
	for _, test := range []struct {
		name, text, want string
		calls            int
	}{
		{"a recording", played, "", 4},
		{"one that was cut off", played[:len(played)-30], "", 3},
		{"nothing but a header", first, "", 0},
		{"nothing", "", "this is not a recording", 0},
		{"a log", "I0101 started\n", "this is not a recording", 0},
		{"other JSON", `{"version":1}`, "this is not a recording", 0},
		{"a newer one", strings.Replace(first, `"version":1`, `"version":2`, 1), "has version 2 of the format", 0},
		{"a broken line", first + "\n{\n" + rest, "line 2: this is not a recording", 0},
		{"a line without end", first + "\n" + strings.Repeat("x", 2<<20), "too long", 0},
		{"too many calls", first + "\n" + strings.Repeat("{}\n", 100_001), "more than 100000 calls", 100_000},
	} {
		r, err := recording.Read(strings.NewReader(test.text))
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) ||
			len(r.Calls) != test.calls {
			t.Errorf("%s: %d calls, %v, want %d, %q", test.name, len(r.Calls), err, test.calls, test.want)
		}
	}
}

// FuzzPlay: no recording disturbs the process that plays it.
func FuzzPlay(f *testing.F) {
	f.Add(played)
	f.Add(`{"volplane":"driver recording","version":1}` + "\n" + `{"request":"too large","code":"OK"}`)
	f.Fuzz(func(_ *testing.T, text string) {
		if r, err := recording.Read(strings.NewReader(text)); err == nil {
			recording.NewPlayer(r)
		}
	})
}
