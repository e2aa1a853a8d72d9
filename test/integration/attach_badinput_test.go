package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/testkit/logged"
	"volplane.dev/volplane/internal/volume"
)

// badAnswer is what the driver says to an attach and a detach of one volume
// until it is told to behave.
type badAnswer struct {
	name   string
	action csitest.Action
	// says is in the events and in `volplane why`, and user says that the user
	// has to act.
	says string
	user bool
}

func badAnswers() []badAnswer {
	yours := []codes.Code{
		codes.InvalidArgument, codes.OutOfRange, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.Unauthenticated,
		codes.FailedPrecondition, codes.ResourceExhausted, codes.Unimplemented,
	}
	var all []badAnswer
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		for _, after := range []bool{false, true} {
			all = append(all, badAnswer{
				name:   strings.ToLower(fmt.Sprintf("%s-%v", code, after)),
				action: csitest.Action{After: after, Err: status.Error(code, "on\nfire")},
				says:   code.String() + ": on fire", user: slices.Contains(yours, code),
			})
		}
	}
	return append(all, badAnswer{
		name: "nonsense", action: csitest.Action{After: true, Answer: csitest.Raw("\xff\xff")},
		says: "breaks the CSI specification",
	})
}

// TestBadAnswersToAttachAndDetach: every code, before and after the driver has
// done its work. An event and `volplane why` say what it is and who acts next,
// nothing else is done meanwhile, and nothing is attached at the end.
func TestBadAnswersToAttachAndDetach(t *testing.T) {
	p := newPlane(t)
	var mu sync.Mutex
	bad := map[string]csitest.Action{}
	misbehave := func(method string) {
		p.driver.OnCall(method, func(_ int, req any) csitest.Action {
			mu.Lock()
			defer mu.Unlock()
			return bad[method+req.(interface{ GetVolumeId() string }).GetVolumeId()]
		})
	}
	misbehave("ControllerPublishVolume")
	misbehave("ControllerUnpublishVolume")
	for _, b := range badAnswers() {
		t.Run(b.name, func(t *testing.T) {
			p := p.of(t)
			handle := p.wire(b.name)
			set := func(method string, a csitest.Action) {
				mu.Lock()
				defer mu.Unlock()
				bad[method+handle] = a
			}
			next := p.conn.Name
			if b.user {
				next = "user"
			}
			set("ControllerPublishVolume", b.action)
			p.pod(b.name, "n1", b.name)
			va := attach.NameOf(p.conn.Name, handle, "n1")
			p.tells("VolumeAttachment", va, volume.ReasonFailedAttach, b.says)
			p.tells("Pod", b.name, volume.ReasonFailedAttach, b.says)
			p.blames(va, next, b.says)
			set("ControllerPublishVolume", csitest.Action{})
			p.tells("Pod", b.name, volume.ReasonAttached, "pv-"+b.name)
			set("ControllerUnpublishVolume", b.action)
			p.removePod(b.name)
			p.tells("VolumeAttachment", va, volume.ReasonFailedDetach, b.says)
			p.blames(va, next, b.says)
			set("ControllerUnpublishVolume", csitest.Action{})
			p.detached()
			p.oneEvent(va, volume.ReasonFailedAttach)
			p.oneEvent(va, volume.ReasonFailedDetach)
		})
	}
}

// blames waits until `volplane why` of an attachment says who has to act, and
// what it is.
func (p *plane) blames(va, next, says string) {
	p.t.Helper()
	p.eventually(func() string {
		var out, errs bytes.Buffer
		code := cli.Main(p.ctx, []string{
			"why", "volumeattachment/" + va, "-o", "json", "--kubeconfig", filepath.Join(p.dir, "admin.kubeconfig"),
		},
			cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs}, "test", cli.Programs{})
		var why struct {
			Answer struct{ Message, Next string }
		}
		if err := json.Unmarshal(out.Bytes(), &why); err != nil || !strings.Contains(why.Answer.Message, says) ||
			why.Answer.Next != next {
			return fmt.Sprintf("why ends with %d, %v, and does not blame %s for %q:\n%s%s", code, err, next, says, &out, &errs)
		}
		return ""
	})
}

// oneEvent says when a repeated failure was told more than once.
func (p *plane) oneEvent(va string, reason volume.Reason) {
	p.t.Helper()
	all, err := p.client.CoreV1().Events("").List(p.ctx, metav1.ListOptions{})
	p.must(err)
	for _, e := range all.Items {
		if e.InvolvedObject.Name == va && e.Reason == string(reason) && e.Count > 1 {
			p.t.Errorf("%s was told %d times: %s", reason, e.Count, e.Message)
		}
	}
}

// TestAttachSecretsStayInside: neither the Secret of an attach nor what the
// driver answers for the node is in a log, an event or an error.
func TestAttachSecretsStayInside(t *testing.T) {
	p := newPlane(t)
	log := &logged.Text{}
	p.stop()
	p.tune = func(o *app.ControlPlaneOptions) {
		o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	loud, err := csi.Dial(p.ctx, p.driver.Socket,
		csi.WithLog(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	p.must(err)
	t.Cleanup(func() { _ = loud.Close() })
	p.drivers.Put(loud)
	p.start()
	_, err = p.client.CoreV1().Secrets("default").Create(p.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"password": "hidden-password"},
	}, metav1.CreateOptions{})
	p.must(err)
	p.driver.OnCall("ControllerPublishVolume", func(n int, req any) csitest.Action {
		if n == 1 {
			secret := req.(*csipb.ControllerPublishVolumeRequest).GetSecrets()["password"]
			return csitest.Action{Err: status.Error(codes.Internal, "cannot log in with "+secret)}
		}
		return csitest.Action{After: true, Answer: &csipb.ControllerPublishVolumeResponse{
			PublishContext: map[string]string{"token": "hidden-token"},
		}}
	})
	handle := p.wire("c", func(v *corev1.PersistentVolume) {
		v.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "key"}
	})
	p.pod("web", "n1", "c")
	p.mayMount("n1", handle)
	va := p.attachments()[0]
	if va.Status.AttachmentMetadata["token"] != "hidden-token" {
		t.Errorf("the node will not find what the driver said: %v", va.Status)
	}
	p.tells("VolumeAttachment", va.Name, volume.ReasonFailedAttach, "cannot log in")
	p.removePod("web")
	p.detached()
	events, err := p.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
	p.must(err)
	told := fmt.Sprint(events.Items)
	for _, secret := range []string{"hidden-password", "hidden-token"} {
		if strings.Contains(log.String(), secret) || strings.Contains(told, secret) ||
			strings.Contains(fmt.Sprint(va.Annotations, va.Status.AttachError), secret) {
			t.Errorf("%s is told:\n%s", secret, log)
		}
	}
	if !strings.Contains(log.String(), "ControllerPublishVolume") {
		t.Error("the calls are not logged at all")
	}
}

// TestVolumeWithTooManyAttributes: a mebibyte of attributes is refused before
// the driver is asked, with the reason.
func TestVolumeWithTooManyAttributes(t *testing.T) {
	p := newPlane(t)
	p.wire("c", func(v *corev1.PersistentVolume) {
		v.Spec.CSI.VolumeAttributes = map[string]string{"a": strings.Repeat("x", 1<<20)}
	})
	p.pod("web", "n1", "c")
	p.tells("Pod", "web", volume.ReasonFailedAttach, "pv-c", "bytes of attributes", "65536")
	va := p.attachment("refused", func(va storagev1.VolumeAttachment) bool { return va.Status.AttachError != nil })
	p.tells("VolumeAttachment", va.Name, volume.ReasonFailedAttach, "bytes of attributes")
	if p.calls("ControllerPublishVolume") > 0 {
		t.Error("the driver was asked")
	}
	p.removePod("web")
	p.detached()
}
