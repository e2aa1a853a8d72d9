package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit/logged"
)

// wantsTokens returns a CSIDriver object with tokenRequests and requiresRepublish.
func wantsTokens() *storagev1.CSIDriver {
	d := noAttach(driverName)
	d.Spec.RequiresRepublish = ptr.To(true)
	d.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "vault", ExpirationSeconds: ptr.To[int64](600)}, {}}
	return d
}

// issueTokens has the API issue tokens with the given lifetime, and counts them.
func (w *world) issueTokens(life time.Duration) *atomic.Int32 {
	var given atomic.Int32
	w.client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest).DeepCopy()
		ref := r.Spec.BoundObjectRef
		if a.GetSubresource() != "token" || ref.Kind != "Pod" || string(ref.UID) != "uid-"+ref.Name {
			return true, nil, fmt.Errorf("unexpected %s for %+v", a.GetSubresource(), ref)
		}
		r.Status.Token = fmt.Sprintf("tok-%d", given.Add(1))
		r.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(life))
		return true, r, nil
	})
	return &given
}

// TestTokens: the driver receives a token for each audience, in the volume context or the secrets, and
// a new one in time. Tokens are stored nowhere else.
func TestTokens(t *testing.T) {
	t.Parallel()
	for _, inSecrets := range []bool{false, true} {
		t.Run(fmt.Sprint("in secrets: ", inSecrets), func(t *testing.T) {
			object := wantsTokens()
			object.Spec.ServiceAccountTokenInSecrets = &inSecrets
			w := newWorld(t, object)
			given := w.issueTokens(50 * time.Millisecond)
			var log logged.Text
			w.tune = func(o *Options) {
				o.RepublishEvery = 20 * time.Millisecond
				o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			d := w.runWithDriver()
			w.mountVolume()
			first := d.publishRequests()[0]
			holds, other := first.VolumeContext, first.Secrets
			if inSecrets {
				holds, other = other, holds
			}
			var tokens map[string]struct{ Token, ExpirationTimestamp string }
			w.must(nil, json.Unmarshal([]byte(holds["csi.storage.k8s.io/serviceAccount.tokens"]), &tokens))
			if tokens["vault"].Token != "tok-1" || tokens[""].Token != "tok-2" || tokens["vault"].ExpirationTimestamp == "" {
				t.Errorf("tokens are %v", tokens)
			}
			if other["csi.storage.k8s.io/serviceAccount.tokens"] != "" {
				t.Error("the tokens are in both places")
			}
			eventually(t, func() string {
				if given.Load() < 4 {
					return "no new token was asked for"
				}
				return ""
			})
			d.setHook(func(_ context.Context, call string) error {
				if strings.HasPrefix(call, "publish:") {
					all := d.publishRequests()
					last := all[len(all)-1]
					return status.Errorf(codes.Internal, "what is %v %v", last.VolumeContext, last.Secrets)
				}
				return nil
			})
			w.eventSaid("FailedMount", "NodePublishVolume by driver d.example: Internal")
			w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
			w.stop()
			w.checkNotDisclosed("tok-", log.String())
		})
	}
}

// TestTokensOfAnotherClock: if the host's clock is wrong by an hour, a token is renewed neither early
// nor late.
func TestTokensOfAnotherClock(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		skew    time.Duration
		seconds int64
		renewed bool
	}{
		"behind": {time.Hour, 1, true},
		"ahead":  {-time.Hour, 600, false},
	} {
		t.Run(name, func(t *testing.T) {
			object := wantsTokens()
			object.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}}
			w := newWorld(t, object)
			var given atomic.Int32
			w.client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
				r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest).DeepCopy()
				r.Spec.ExpirationSeconds, r.Status.Token = &c.seconds, fmt.Sprintf("tok-%d", given.Add(1))
				r.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(c.skew + time.Duration(c.seconds)*time.Second))
				return true, r, nil
			})
			w.tune = func(o *Options) { o.RepublishEvery = 10 * time.Millisecond }
			d := w.runWithDriver()
			w.mountVolume()
			eventually(t, func() string {
				if n := len(d.publishRequests()); n < 10 || c.renewed && given.Load() < 2 {
					return fmt.Sprintf("published %d times with %d tokens", n, given.Load())
				}
				return ""
			})
			if n := given.Load(); !c.renewed && n > 1 {
				t.Errorf("%d tokens for one", n)
			}
		})
	}
}

// checkNotDisclosed checks that a secret is in no log, no event, and no file of the agent.
func (w *world) checkNotDisclosed(secret, log string) {
	w.t.Helper()
	if strings.Contains(log, secret) {
		w.t.Errorf("the log holds %s: %s", secret, log)
	}
	events, err := w.client.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{})
	w.must(nil, err)
	for _, e := range events.Items {
		if strings.Contains(e.Message, secret) {
			w.t.Errorf("an event holds %s: %s", secret, e.Message)
		}
	}
	files, err := filepath.Glob(filepath.Join(w.dir, "journal", "*"))
	w.must(nil, err)
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), secret) {
			w.t.Errorf("%s holds %s", f, secret)
		}
	}
}

// TestNoToken: without a token the driver is not called, and the Pod's condition says why.
func TestNoToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wantsTokens())
	w.client.PrependReactor("create", "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, fmt.Errorf("no such account")
	})
	d := w.runWithDriver()
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionFalse,
		`FailedMount: token of service account ns/default for audience "vault": no such account`)
	w.eventSaid("FailedMount", "no such account")
	if got := d.history(); strings.Contains(got, "publish:") {
		t.Errorf("calls: %s", got)
	}
}

// TestRepublish: a driver with requiresRepublish is called periodically. A failure of such a call
// unmounts nothing, and is recorded at the Pod.
func TestRepublish(t *testing.T) {
	t.Parallel()
	object := noAttach(driverName)
	object.Spec.RequiresRepublish = ptr.To(true)
	w := newWorld(t, object)
	w.tune = func(o *Options) { o.RepublishEvery = 10 * time.Millisecond }
	d := w.runWithDriver()
	w.mountVolume()
	again := func(n int) {
		t.Helper()
		eventually(t, func() string {
			if got := len(d.publishRequests()); got < n {
				return fmt.Sprintf("published %d times", got)
			}
			return ""
		})
	}
	again(3)
	d.setHook(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "publish:") {
			return status.Error(codes.Internal, "not now")
		}
		return nil
	})
	w.eventSaid("FailedMount", "not now")
	again(len(d.publishRequests()) + 2)
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	d.setHook(nil)
	again(len(d.publishRequests()) + 2)
	if got := d.history(); strings.Contains(got, "unpublish:") || strings.Count(got, "stage:") != 1 {
		t.Errorf("calls: %s", got)
	}
	w.stop()
	before := len(d.publishRequests())
	w.run()
	again(before + 1)
	w.endPods("p")
}
