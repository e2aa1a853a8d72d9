package csi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/volume"
)

// FuzzAnswer: every accepted answer is within the limits.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []*csipb.CreateVolumeResponse{
		{},
		{Volume: &csipb.Volume{VolumeId: "v", CapacityBytes: -1}},
		{Volume: &csipb.Volume{
			VolumeId: "v", VolumeContext: map[string]string{"a": "b"},
			AccessibleTopology: []*csipb.Topology{{Segments: map[string]string{"k": "v"}}, nil},
		}},
	} {
		data, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &csipb.CreateVolumeResponse{}
		if proto.Unmarshal(data, r) != nil || answerProblem(r) != "" {
			return
		}
		v := r.GetVolume()
		if v.GetVolumeId() == "" || len(v.GetVolumeId()) > 1<<10 || v.GetCapacityBytes() < 0 {
			t.Errorf("passed: %v", r)
		}
		size := 0
		for k, v := range v.GetVolumeContext() {
			size += len(k) + len(v)
		}
		if size > 64<<10 {
			t.Errorf("a context of %d bytes passed", size)
		}
	})
}

// FuzzError: every error of a driver has an outcome and a description.
func FuzzError(f *testing.F) {
	f.Add(uint32(0), "")
	f.Add(uint32(13), "grpc: received message larger than max (5 vs. 4)")
	f.Add(uint32(2), "line\nline\x1b[31m\xff")
	f.Add(uint32(99), strings.Repeat("ä", 600))
	f.Fuzz(func(t *testing.T, code uint32, message string) {
		err := checkError(status.Error(codes.Code(code), message))
		if done := OutcomeOf(err) == volume.Done; done != (err == nil) {
			t.Errorf("%v: outcome %v", err, OutcomeOf(err))
		}
		text := Describe(err)
		if !utf8.ValidString(text) || len(text) > maxMessage+100 ||
			strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("description %q", text)
		}
	})
}

// FuzzSecret: no error quotes a secret.
func FuzzSecret(f *testing.F) {
	f.Add("secret", "other", "before ", " after")
	f.Add("aa", "aaa", "aaaa", "")
	f.Fuzz(func(t *testing.T, secret, other, before, after string) {
		const marks = "*"
		if strings.Trim(secret, marks) == "" || strings.TrimSpace(secret) == "" || len(secret) < 4 ||
			!utf8.ValidString(secret+other+before+after) {
			return
		}
		call := hideSecrets(NewMemory(nil), &Driver{})(func(context.Context, string, any, any, ...grpc.CallOption) error {
			return status.Error(codes.Internal, "begin|"+secret+"|end")
		})
		err := call(t.Context(), "m", &csipb.DeleteVolumeRequest{Secrets: map[string]string{"a": secret, "b": other}}, nil)
		if got := status.Convert(err).Message(); strings.Contains(got, "|"+secret+"|") {
			t.Errorf("%q with secret %q", got, secret)
		}
	})
}

// TestDeadlines runs in virtual time.
func TestDeadlines(t *testing.T) { synctest.Test(t, deadlines) }

func deadlines(t *testing.T) {
	left := func(ctx context.Context, method string) time.Duration {
		var limit time.Duration
		call := withDeadline(controllerLimit)(func(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
			end, ok := ctx.Deadline()
			if !ok {
				return errors.New("no deadline")
			}
			limit = time.Until(end)
			return nil
		})
		if err := call(ctx, method, nil, nil); err != nil {
			t.Error(err)
		}
		return limit
	}
	hour, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	second, cancelSecond := context.WithTimeout(t.Context(), time.Second)
	defer cancelSecond()
	const ten, minute = 10 * time.Second, time.Minute
	for _, test := range []struct {
		ctx    context.Context
		method string
		want   time.Duration
	}{
		{t.Context(), csipb.Controller_CreateVolume_FullMethodName, createLimit},
		{t.Context(), csipb.Controller_DeleteVolume_FullMethodName, controllerLimit},
		{t.Context(), csipb.Identity_Probe_FullMethodName, controllerLimit},
		{t.Context(), csipb.Node_NodeStageVolume_FullMethodName, nodeLimit},
		{hour, csipb.Controller_CreateVolume_FullMethodName, createLimit},
		{hour, csipb.Node_NodeStageVolume_FullMethodName, time.Hour},
		// A user's limit takes precedence over all others, but never extends beyond the end of the context.
		{Limit(t.Context(), time.Hour), csipb.Controller_CreateVolume_FullMethodName, time.Hour},
		{Limit(hour, ten), csipb.Controller_ListVolumes_FullMethodName, ten},
		{OwnLimit(t.Context(), minute), csipb.Controller_CreateSnapshot_FullMethodName, minute},
		{OwnLimit(Limit(t.Context(), ten), minute), csipb.Controller_CreateSnapshot_FullMethodName, ten},
		{Limit(second, ten), csipb.Controller_DeleteVolume_FullMethodName, time.Second},
	} {
		if got := left(test.ctx, test.method); got != test.want {
			t.Errorf("%s: %v, want %v", test.method, got, test.want)
		}
	}
}
