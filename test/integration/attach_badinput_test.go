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
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/testkit/logged"
	"volplane.dev/volplane/internal/volume"
)

// badAnswer is the driver's answer to an attach and a detach of one volume, until the test ends it.
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

// TestBadAnswersToAttachAndDetach: the driver returns each code, before or after it did the work. An event
// and `volplane why` give the reason and who acts next. Nothing else is done in the meantime, and nothing
// is attached at the end.
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
			handle := p.createBoundVolume(b.name)
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
			p.createPod(b.name, "n1", b.name)
			va := attach.NameOf(p.conn.Name, handle, "n1")
			p.waitForEvent("VolumeAttachment", va, volume.ReasonFailedAttach, b.says)
			p.waitForEvent("Pod", b.name, volume.ReasonFailedAttach, b.says)
			p.blames(va, next, b.says)
			set("ControllerPublishVolume", csitest.Action{})
			p.waitForEvent("Pod", b.name, volume.ReasonAttached, "pv-"+b.name)
			set("ControllerUnpublishVolume", b.action)
			p.deletePod(b.name)
			p.waitForEvent("VolumeAttachment", va, volume.ReasonFailedDetach, b.says)
			p.blames(va, next, b.says)
			set("ControllerUnpublishVolume", csitest.Action{})
			p.waitForDetached()
			p.oneEvent(va, volume.ReasonFailedAttach)
			p.oneEvent(va, volume.ReasonFailedDetach)
		})
	}
}

// blames waits until `volplane why` of an attachment names who acts next, and the reason.
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

// oneEvent requires that a repeated failure has one event.
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

// TestAttachSecretsStayInside: no log, event or error has the Secret of an attach, or what the driver
// returned for the node.
func TestAttachSecretsStayInside(t *testing.T) {
	p := newPlane(t)
	log := &logged.Text{}
	p.stop()
	p.tune = func(o *app.ControlPlaneOptions) {
		o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	p.start()
	_, err := p.client.CoreV1().Secrets("default").Create(p.ctx, &corev1.Secret{
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
	handle := p.createBoundVolume("c", func(v *corev1.PersistentVolume) {
		v.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "key"}
	})
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", handle)
	va := p.attachments()[0]
	if va.Status.AttachmentMetadata["token"] != "hidden-token" {
		t.Errorf("the node will not find what the driver said: %v", va.Status)
	}
	p.waitForEvent("VolumeAttachment", va.Name, volume.ReasonFailedAttach, "cannot log in")
	p.deletePod("web")
	p.waitForDetached()
	events, err := p.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
	p.must(err)
	told := fmt.Sprint(events.Items)
	for _, secret := range []string{"hidden-password", "hidden-token"} {
		if strings.Contains(log.String(), secret) || strings.Contains(told, secret) ||
			strings.Contains(fmt.Sprint(va.Annotations, va.Status.AttachError), secret) {
			t.Errorf("%s is told:\n%s", secret, log)
		}
	}
}

// TestVolumeWithTooManyAttributes: a volume with a mebibyte of attributes is refused, with the reason,
// before the driver is called.
func TestVolumeWithTooManyAttributes(t *testing.T) {
	p := newPlane(t)
	p.createBoundVolume("c", func(v *corev1.PersistentVolume) {
		v.Spec.CSI.VolumeAttributes = map[string]string{"a": strings.Repeat("x", 1<<20)}
	})
	p.createPod("web", "n1", "c")
	p.waitForEvent("Pod", "web", volume.ReasonFailedAttach, "pv-c", "bytes of attributes", "65536")
	va := p.attachment("refused", func(va storagev1.VolumeAttachment) bool { return va.Status.AttachError != nil })
	p.waitForEvent("VolumeAttachment", va.Name, volume.ReasonFailedAttach, "bytes of attributes")
	if p.calls("ControllerPublishVolume") > 0 {
		t.Error("the driver was asked")
	}
	p.deletePod("web")
	p.waitForDetached()
}
