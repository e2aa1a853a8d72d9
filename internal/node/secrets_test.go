package node

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/logged"
)

// TestSecretsOfEarlierCalls: a driver's error contains a secret of an earlier call, also after a
// restart of the agent: nothing discloses it. If the Secret no longer exists, nothing of the driver's
// text is shown, because its values are unknown.
func TestSecretsOfEarlierCalls(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse-battery"
	w := newWorld(t, noAttach(driverName), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"key": []byte(secret)},
	})
	log := &logged.Text{}
	w.tune = func(o *Options) {
		o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	d := w.runWithDriver()
	w.addVolume(driverName, "a", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "s"}
	})
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")

	says := func(word string) func(context.Context, string) error {
		return func(_ context.Context, call string) error {
			if !strings.HasPrefix(call, "un") {
				return nil
			}
			return status.Errorf(codes.Internal, "%s: key=%s or %s or %x", word, secret[:12],
				base64.StdEncoding.EncodeToString([]byte("u:"+secret)), secret)
		}
	}
	d.setHook(says("first"))
	w.terminate("p")
	w.heard("Pod", "p", "FailedUnmount", "first: key=*** or dT*** or ***", "node n1")
	w.stop()
	d.setHook(says("second"))
	w.run()
	w.heard("Pod", "p", "FailedUnmount", "second: key=*** or dT***", "node n1")
	w.stop()
	d.setHook(says("third"))
	w.must(nil, w.client.CoreV1().Secrets("ns").Delete(t.Context(), "s", metav1.DeleteOptions{}))
	w.run()
	w.heard("Pod", "p", "FailedUnmount", "(what the driver said is not shown, because it may hold a secret that it was "+
		"given earlier: what volume pv-a was mounted with: ", "node n1")
	w.stop()

	events, err := w.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	w.must(nil, err)
	shown := log.String()
	for i := range events.Items {
		shown += events.Items[i].Message
	}
	for _, spelling := range []string{
		secret[:12], fmt.Sprintf("%x", secret), base64.StdEncoding.EncodeToString([]byte("u:" + secret))[4:12], "third",
	} {
		if strings.Contains(shown, spelling) {
			t.Errorf("%q is shown in %s", spelling, shown)
		}
	}
}

// TestSecretsOfALostRecord: the journal's record of a volume is lost, and a driver's error contains a
// secret of an earlier call. The volume's object or the Pod names the Secret; if neither exists,
// nothing of the driver's text is shown.
func TestSecretsOfALostRecord(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse-battery"
	deleted := func(w *world) {
		w.must(nil, w.client.CoreV1().PersistentVolumes().Delete(w.t.Context(), "pv-a", metav1.DeleteOptions{}))
	}
	for name, c := range map[string]struct {
		grown              bool
		then               func(*world)
		kind, object, want string
	}{
		"its object is there":            {false, func(*world) {}, "Pod", "p", "key=***"},
		"it was given one as it grew":    {true, func(*world) {}, "Pod", "p", "key=***"},
		"nobody knows what it was given": {false, deleted, "Node", "n1", "(what the driver said is not shown"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach(driverName), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"key": []byte(secret)},
			})
			d := w.runWithDriver()
			w.addVolume(driverName, "a", func(pv *corev1.PersistentVolume) {
				ref := &corev1.SecretReference{Namespace: "ns", Name: "s"}
				if pv.Spec.CSI.NodeStageSecretRef = ref; c.grown {
					pv.Spec.CSI.NodeStageSecretRef, pv.Spec.CSI.NodeExpandSecretRef = nil, ref
				}
			})
			w.pod("p", "a")
			w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
			w.stop()
			w.loseRecords()
			c.then(w)
			d.setHook(func(_ context.Context, call string) error {
				if !strings.HasPrefix(call, "un") {
					return nil
				}
				return status.Error(codes.Internal, "key="+secret)
			})
			w.run()
			w.terminate("p")
			w.heard(c.kind, c.object, "FailedUnmount", c.want, "node n1")
		})
	}
}
