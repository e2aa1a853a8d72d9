package node

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/retry"
	"volplane.dev/volplane/internal/volume"
)

// TestTimeOfCalls: while a driver does not answer, the Pod has the time of the call; when the call has failed, the
// event has the attempt and the time of the next one, and the Pod does not have the time of the call any more.
func TestTimeOfCalls(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	answer := make(chan struct{})
	d.setHook(func(ctx context.Context, call string) error {
		if !strings.HasPrefix(call, "stage:") {
			return nil
		}
		select {
		case <-answer:
		case <-ctx.Done():
		}
		return status.Error(codes.Internal, "on fire")
	})
	w.addVolume(driverName, "a")
	before := time.Now().Truncate(time.Second)
	w.pod("p", "a")
	calledAt := func() string {
		pod, err := w.client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
		w.must(nil, err)
		return pod.Annotations[volume.AnnCalledAt]
	}
	w.awaitCondition("p", corev1.ConditionFalse, "has not answered yet")
	if at, err := time.Parse(time.RFC3339, calledAt()); err != nil || at.Before(before) || at.After(time.Now()) {
		t.Errorf("called at %q (%v), the Pod was made at %s", calledAt(), err, before)
	}
	close(answer)
	w.awaitCondition("p", corev1.ConditionFalse, "FailedMount")
	if at := calledAt(); at != "" {
		t.Errorf("called at %s, and answered", at)
	}
	w.event(func(e *corev1.Event) bool {
		try := retry.TryOf(e.Annotations)
		return e.InvolvedObject.Name == "p" && e.Reason == "FailedMount" && try.Number > 1 && try.Next.After(before)
	}, "with a second attempt")
}

// TestEachSlowCallIsTold: a Pod that had no condition when its volume's plan was made is told of every call that takes
// long.
func TestEachSlowCallIsTold(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	answer := make(chan struct{})
	d.setHook(func(ctx context.Context, call string) error {
		if strings.HasPrefix(call, "stage:") || strings.HasPrefix(call, "publish:") {
			select {
			case <-answer:
			case <-ctx.Done():
			}
		}
		return nil
	})
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		w.awaitCondition("p", corev1.ConditionFalse, "("+method+") and has not answered yet")
		answer <- struct{}{}
	}
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
}
