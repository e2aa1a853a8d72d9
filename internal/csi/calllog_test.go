package csi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// told is a driver whose calls are logged by a CallLog.
type told struct {
	log    bytes.Buffer
	call   invoker
	answer func(context.Context) error
}

func newTold(level slog.Level) *told {
	d := &told{}
	log := slog.New(slog.NewTextHandler(&d.log, &slog.HandlerOptions{
		Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	o := newOptions("", []Option{WithCallLog(NewCallLog(log)), WithExpectedName("d.example.com")})
	d.call = o.chain(&Driver{}, func(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
		return d.answer(ctx)
	})
	return d
}

// delete calls DeleteVolume, and returns what the log has from then on.
func (d *told) delete(ctx context.Context, id string) string {
	d.log.Reset()
	_ = d.call(ctx, csipb.Controller_DeleteVolume_FullMethodName, &csipb.DeleteVolumeRequest{VolumeId: id},
		&csipb.DeleteVolumeResponse{})
	return d.log.String()
}

// TestEachCallIsTold with its subject, and without the secrets that it carries, however the driver spells them.
func TestEachCallIsTold(t *testing.T) {
	const secret = "hunter22 and more"
	spelled := []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret))}
	synctest.Test(t, func(t *testing.T) {
		for _, method := range Methods() {
			d := newTold(slog.LevelInfo)
			d.answer = func(context.Context) error {
				<-time.After(3 * time.Second)
				return status.Error(codes.Internal, "no:\n"+strings.Join(spelled, "|"))
			}
			request, answer := NewMessages(method)
			FillSecrets(request, map[string]string{"password": secret})
			ctx := About(t.Context(), Subject{Volume: "pvc-1", Claim: "shop/data", Node: "n1", Object: "pod/shop/web"})
			_ = d.call(ctx, method, request, answer)
			if isQuestion(method) {
				if d.log.Len() > 0 {
					t.Errorf("an identifying call is logged: %s", d.log.String())
				}
				continue
			}
			want := `level=WARN msg="a call to a driver has failed" driver=d.example.com call=` + path.Base(method) +
				` volume=pvc-1 claim=shop/data node=n1 object=pod/shop/web attempt=1 duration=3s code=Internal err="no: `
			if HasSecrets(request) {
				want += "***|***|***\"\n"
			}
			if got := d.log.String(); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 1 {
				t.Errorf("%s:\n%s, want\n%s", method, got, want)
			}
		}
	})
}

// TestRepeatedFailures: repeated failures are logged less and less often, separately for each volume, and all of them
// at debug level.
func TestRepeatedFailures(t *testing.T) {
	d, all := newTold(slog.LevelInfo), newTold(slog.LevelDebug)
	failing := func(context.Context) error { return status.Error(codes.Aborted, "pending") }
	d.answer, all.answer = failing, failing
	var at []int
	for i := 1; i <= 20; i++ {
		if text := d.delete(t.Context(), "v1"); strings.Contains(text, fmt.Sprintf("id=v1 attempt=%d ", i)) {
			at = append(at, i)
		} else if text != "" {
			t.Error(text)
		}
		if text := all.delete(t.Context(), "v1"); !strings.Contains(text, fmt.Sprintf("attempt=%d ", i)) {
			t.Errorf("attempt %d is not logged at debug level: %s", i, text)
		}
	}
	if fmt.Sprint(at) != "[1 2 4 8 16]" {
		t.Errorf("logged attempts %v", at)
	}
	if text := d.delete(t.Context(), "v2"); !strings.Contains(text, "id=v2 attempt=1 ") {
		t.Errorf("another volume: %q", text)
	}
	d.answer = func(context.Context) error { return nil }
	if text := d.delete(t.Context(), "v1"); text != "" {
		t.Errorf("a quick success is logged: %s", text)
	}
	d.answer = failing
	if text := d.delete(t.Context(), "v1"); !strings.Contains(text, "attempt=1 ") {
		t.Errorf("after a success: %q", text)
	}
}

// TestManyFailures: however many volumes fail, the log and the memory are bounded.
func TestManyFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, lines := newTold(slog.LevelInfo), 0
		d.answer = func(context.Context) error { return status.Error(codes.Internal, "no") }
		fail := func() {
			for i := range 3 * maxFailing {
				lines += strings.Count(d.delete(t.Context(), fmt.Sprint("v", i)), "\n")
			}
		}
		fail()
		if lines < maxFailing || lines > maxFailing+20 {
			t.Errorf("%d lines", lines)
		}
		<-time.After(failingLife + time.Second)
		if text := d.delete(t.Context(), "new"); !strings.Contains(text, "id=new attempt=1 ") {
			t.Errorf("old failures take the place of new ones: %q", text)
		}
	})
}

// TestSlowCalls: slow calls are logged while they last and at their end; a call whose caller has given up is not.
func TestSlowCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTold(slog.LevelInfo)
		sleep := func(ctx context.Context) error {
			select {
			case <-time.After(12 * time.Second):
				return nil
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
		}
		d.answer = sleep
		const about = `driver=d.example.com call=DeleteVolume id=v1 `
		want := `level=INFO msg="waiting for the answer of a driver" ` + about + "attempt=1 waited=10s\n" +
			`level=INFO msg="a call to a driver took long" ` + about + "duration=12s\n"
		if got := d.delete(t.Context(), "v1"); got != want {
			t.Errorf("%s, want\n%s", got, want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if got := d.delete(ctx, "v1"); got != "" {
			t.Error(got)
		}
		over, end := context.WithTimeout(t.Context(), 3*time.Second)
		defer end()
		if got := d.delete(over, "v1"); !strings.Contains(got, "code=DeadlineExceeded") {
			t.Error(got)
		}
	})
}

// TestCallsThatAreDone: successful calls are logged at klog's level 5, as upstream's sidecars log them.
func TestCallsThatAreDone(t *testing.T) {
	d := newTold(levelCall)
	d.answer = func(context.Context) error { return nil }
	var request proto.Message = &csipb.DeleteVolumeRequest{VolumeId: "v", Secrets: map[string]string{"k": "hunter22"}}
	_ = d.call(t.Context(), csipb.Controller_DeleteVolume_FullMethodName, request, &csipb.DeleteVolumeResponse{})
	for _, want := range []string{
		`level=DEBUG-1 msg="a call to a driver is done" driver=d.example.com call=DeleteVolume id=v duration=`,
		`request="{\"volume_id\":\"v\",\"secrets\":{\"k\":\"***\"}}" answer={}`,
	} {
		if !strings.Contains(d.log.String(), want) {
			t.Errorf("%s lacks %s", d.log.String(), want)
		}
	}
}

// TestIsAnswer: only errors that the log of calls has may be left out elsewhere.
func TestIsAnswer(t *testing.T) {
	answer, other := status.Error(codes.Internal, "no"), errors.New("disk full")
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{other, false},
		{answer, true},
		{refuse(codes.Unknown, ErrAnswer, "no id"), true},
		{refuse(codes.Unavailable, ErrHeld, ""), false},
		{refuse(codes.Aborted, ErrBusy, ""), false},
		{refuse(codes.Unavailable, ErrTerm, ""), false},
		{fmt.Errorf("volume v: %w", answer), true},
		{errors.Join(answer, fmt.Errorf("x: %w", answer)), true},
		{errors.Join(answer, other), false},
		{fmt.Errorf("%w; %w", answer, other), false},
	} {
		if got := IsAnswer(test.err); got != test.want {
			t.Errorf("%v: %v", test.err, got)
		}
	}
}
