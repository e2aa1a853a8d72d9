package doctor

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/workshop/finding"
)

// TestSanityIsContained: each case of csi-sanity names a check that there is, or says why none contains it.
func TestSanityIsContained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/sanity.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases := 0
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cases++
		_, by, found := strings.Cut(line, " | ")
		if why, none := strings.CutPrefix(by, "- "); none && why != "" {
			continue
		}
		for check := range strings.FieldsSeq(by) {
			if !slices.Contains(names(), check) {
				t.Errorf("%s: there is no check %q", line, check)
			}
		}
		if !found || by == "" {
			t.Errorf("%s: by which check?", line)
		}
	}
	// So many are in the source of csi-sanity, without those of groups of snapshots.
	if cases != 90 {
		t.Errorf("%d cases", cases)
	}
}

// TestEachCheckAdvises: each check has one name, and says what to do.
func TestEachCheckAdvises(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range checks() {
		if seen[c.name] || c.next == "" || c.run == nil {
			t.Errorf("%q: %q", c.name, c.next)
		}
		seen[c.name] = true
	}
}

// TestCommandOf: references stand for one word each, whatever is in them.
func TestCommandOf(t *testing.T) {
	t.Parallel()
	if got, err := commandOf("", nil); err != nil || got != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, text := range []string{" ", `"a`, "a | b"} {
		if got, err := commandOf(text, nil); err == nil {
			t.Errorf("%q: %q", text, got)
		}
	}
	got, err := commandOf("'$(CSI_ENDPOINT)' --n=$(NODE_NAME) $(OTHER)",
		map[string]string{"CSI_ENDPOINT": "unix:///a b", "NODE_NAME": "n"})
	if err != nil || !slices.Equal(got, []string{"unix:///a b", "--n=n", "$(OTHER)"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestStatsVerdict: the numbers must go together, and be bytes.
func TestStatsVerdict(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	usage := func(total, used, available int64) *csipb.VolumeUsage {
		return &csipb.VolumeUsage{Total: total * mib, Used: used * mib, Available: available * mib}
	}
	for name, c := range map[string]struct {
		empty, full *csipb.VolumeUsage
		want        finding.Level
	}{
		"as it should be":        {usage(60, 1, 55), usage(60, 3, 53), finding.Pass},
		"nothing at all":         {usage(0, 0, 0), usage(0, 0, 0), finding.Fail},
		"more used than all":     {usage(60, 61, 0), usage(60, 63, 0), finding.Fail},
		"more free than all":     {usage(60, 0, 70), usage(60, 2, 70), finding.Fail},
		"more together than all": {usage(60, 30, 40), usage(60, 32, 38), finding.Fail},
		"most is nowhere":        {usage(60, 1, 5), usage(60, 3, 5), finding.Warn},
		"nothing was written":    {usage(60, 1, 55), usage(60, 1, 55), finding.Warn},
		"in other units":         {usage(60<<10, 1<<10, 55<<10), usage(60<<10, 3<<10, 53<<10), finding.Warn},
	} {
		if v := statsVerdict(c.empty, c.full); v.level != c.want {
			t.Errorf("%s: %s %s", name, v.level, v.message)
		}
	}
}

// TestVolumeProblem: what CreateVolume answers must be what was asked for.
func TestVolumeProblem(t *testing.T) {
	t.Parallel()
	source := fromVolume("source")
	for name, c := range map[string]struct {
		size, limit, has int64
		id               string
		asked, answered  *csipb.VolumeContentSource
		want             string
	}{
		"as it should be": {size: 2, has: 2, id: "v"},
		"larger":          {size: 2, has: 3, id: "v"},
		"of unknown size": {size: 2, id: "v"},
		"no id":           {size: 2, has: 2, want: "no id"},
		"too small":       {size: 2, has: 1, id: "v", want: "1 bytes, 2 were required"},
		"too large":       {size: 2, limit: 3, has: 4, id: "v", want: "4 bytes, 3 are the limit"},
		"a copy":          {size: 2, has: 2, id: "v", asked: source, answered: source},
		"an unknown copy": {size: 2, has: 2, id: "v", asked: source, want: "does not name the source"},
		"no copy":         {size: 2, has: 2, id: "v", answered: source, want: "none was asked for"},
	} {
		r := &csipb.CreateVolumeRequest{
			CapacityRange: &csipb.CapacityRange{RequiredBytes: c.size, LimitBytes: c.limit}, VolumeContentSource: c.asked,
		}
		got := volumeProblem(r, &csipb.Volume{VolumeId: c.id, CapacityBytes: c.has, ContentSource: c.answered})
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestNodeInfoProblems: what NodeGetInfo says becomes the name and the labels of a node.
func TestNodeInfoProblems(t *testing.T) {
	t.Parallel()
	rack := map[string]string{"topology.example.com/rack": "r-1"}
	for name, c := range map[string]struct {
		a, b csi.NodeInfo
		want int
	}{
		"as it should be": {csi.NodeInfo{ID: "n", Topology: rack}, csi.NodeInfo{ID: "n"}, 0},
		"no id":           {csi.NodeInfo{Topology: rack}, csi.NodeInfo{}, 1},
		"another id":      {csi.NodeInfo{ID: "n", Topology: rack}, csi.NodeInfo{ID: "m"}, 1},
		"a long id": {
			csi.NodeInfo{ID: strings.Repeat("n", 257), Topology: rack},
			csi.NodeInfo{ID: strings.Repeat("n", 257)},
			1,
		},
		"fewer than none": {csi.NodeInfo{ID: "n", MaxVolumes: -1, Topology: rack}, csi.NodeInfo{ID: "n"}, 1},
		"nowhere":         {csi.NodeInfo{ID: "n"}, csi.NodeInfo{ID: "n"}, 1},
		"no label": {csi.NodeInfo{
			ID: "n", Topology: map[string]string{"a b": "c", "d": "e f"},
		}, csi.NodeInfo{ID: "n"}, 2},
		"a prefix too many": {csi.NodeInfo{ID: "n", Topology: map[string]string{"a/b/c": ""}}, csi.NodeInfo{ID: "n"}, 1},
	} {
		if got := nodeInfoProblems(c.a, c.b, true); len(got) != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestWitness: secrets are found in every form, also in two parts of what is printed; sizes and messages are measured.
func TestWitness(t *testing.T) {
	t.Parallel()
	secrets := map[string]string{"password": "pa55 word\n", "user": "x"}
	answer := func(context map[string]string) *csipb.ControllerPublishVolumeResponse {
		return &csipb.ControllerPublishVolumeResponse{PublishContext: context}
	}
	for name, c := range map[string]struct {
		reply any
		err   error
		print []string
		check string
	}{
		"nothing":        {reply: answer(map[string]string{"user": "x"}), print: []string{"x is here"}},
		"in a context":   {reply: answer(map[string]string{"a": "with pa55 word in it"}), check: "secrets"},
		"in a key":       {reply: answer(map[string]string{"pa55 word": ""}), check: "secrets"},
		"in an error":    {err: status.Error(codes.Internal, "login pa55+word%0A"), check: "secrets"},
		"in base64":      {print: []string{"cGE1NSB3b3JkCg"}, check: "secrets"},
		"in two parts":   {print: []string{"it is pa5", "5 word, is it not"}, check: "secrets"},
		"a long context": {reply: answer(map[string]string{"a": strings.Repeat("b", 4096)}), check: "limits"},
		"a long id": {
			reply: &csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: strings.Repeat("a", 129)}}, check: "limits",
		},
		"a long id of a node":      {reply: &csipb.NodeGetInfoResponse{NodeId: strings.Repeat("a", 257)}, check: "limits"},
		"an id of a node":          {reply: &csipb.NodeGetInfoResponse{NodeId: strings.Repeat("a", 256)}},
		"no message":               {err: status.Error(codes.Internal, " "), check: "messages"},
		"a long message":           {err: status.Error(codes.Internal, strings.Repeat("a", 4097)), check: "messages"},
		"a message with a bell":    {err: status.Error(codes.Internal, "\a"), check: "messages"},
		"a message of two lines":   {err: status.Error(codes.Internal, "a\nb")},
		"a lost connection":        {err: status.Error(codes.Unavailable, "")},
		"a call that was given up": {err: status.FromContextError(context.Canceled).Err()},
	} {
		w := newWitness(secrets)
		if c.reply != nil || c.err != nil {
			w.see("/csi.v1.Node/Call", c.reply, c.err)
		}
		for _, text := range c.print {
			if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
				t.Error(n, err)
			}
		}
		for _, check := range []string{"secrets", "limits", "messages"} {
			if got := w.complaint(check); (got != "") != (check == c.check) || strings.Contains(got, "pa55") {
				t.Errorf("%s: %s: %q", name, check, got)
			}
		}
	}
}

// TestLastWords: of a driver that panics, the reason counts and not the end of the trace.
func TestLastWords(t *testing.T) {
	t.Parallel()
	w := newWitness(nil)
	for _, text := range []string{"starts\n", "panic: no such\nthing\n", strings.Repeat("goroutine 1\n", 1000)} {
		if _, err := w.Write([]byte(text)); err != nil {
			t.Error(err)
		}
	}
	if got := w.lastWords(); got != "panic: no such" {
		t.Errorf("%q", got)
	}
	if got := w.lastWords(); !strings.HasSuffix(got, "goroutine 1") || len(got) > 600 {
		t.Errorf("%q", got)
	}
}

// TestAnswered: the code counts, and OK is one.
func TestAnswered(t *testing.T) {
	t.Parallel()
	if got := answered("Call", nil, codes.OK, codes.NotFound); got != "" {
		t.Error(got)
	}
	if got := answered("Call", nil, codes.NotFound); got != "Call: OK, want NotFound" {
		t.Error(got)
	}
	if got := answered("Call", errors.New("x"), codes.NotFound); !strings.Contains(got, "want NotFound") {
		t.Error(got)
	}
}
