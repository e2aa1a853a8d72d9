package node

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/attach"
)

// replaceAttachment replaces an attachment by another one of the same name, as a forced detach and a
// new attach do.
func (w *world) replaceAttachment(name, uid string) {
	w.t.Helper()
	all, at := w.client.StorageV1().VolumeAttachments(), attach.NameOf(driverName, "h-"+name, "n1")
	va, err := all.Get(w.t.Context(), at, metav1.GetOptions{})
	w.must(va, err)
	w.must(nil, all.Delete(w.t.Context(), at, metav1.DeleteOptions{}))
	anew := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: at, UID: types.UID(uid)}, Spec: va.Spec, Status: va.Status,
	}
	w.must(all.Create(w.t.Context(), anew, metav1.CreateOptions{}))
}

// TestDetachedMeanwhile: a node was cut off, its Pod was deleted, and its volume was detached by force.
// When the volume is attached again for another Pod, the old mounts are removed first, because another
// node may have written to the volume.
func TestDetachedMeanwhile(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t)
	w.addVolume(driverName, "a")
	w.attach(driverName, "a")
	w.replaceAttachment("a", "first")
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	w.stop()
	w.must(nil, w.client.CoreV1().Pods("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}))
	w.replaceAttachment("a", "second")
	w.pod("q", "a")
	before := len(d.history())
	w.run()
	w.awaitCondition("q", corev1.ConditionTrue, "v-a=")
	var steps []string
	for _, call := range strings.Fields(d.history()[before:]) {
		if step, _, _ := strings.Cut(call, ":"); step != "info" {
			steps = append(steps, step)
		}
	}
	if got, want := strings.Join(steps, " "), "unpublish unstage stage publish"; got != want {
		t.Errorf("the driver was asked to %s; want %s", got, want)
	}
	// Another Pod by the same attachment, and one by a third while this lives.
	w.pod("r", "a")
	w.awaitCondition("r", corev1.ConditionTrue, "v-a=")
	w.replaceAttachment("a", "third")
	w.pod("s", "a")
	w.awaitCondition("s", corev1.ConditionTrue, "v-a=")
	if n := strings.Count(d.history(), "unstage:"); n != 1 {
		t.Errorf("the volume was taken from living Pods: %s", d.history())
	}
	w.endPods("q", "r", "s")
}

// TestRefusedAndDetachedMeanwhile: the driver refused to unstage a volume, which was then detached by force and
// attached again. What is mounted of it is old, and must go before the next Pod gets the volume, however long that
// takes.
func TestRefusedAndDetachedMeanwhile(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t)
	w.addVolume(driverName, "a")
	w.attach(driverName, "a")
	w.replaceAttachment("a", "first")
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	refused := make(chan struct{}, 100)
	d.setHook(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "unstage:") {
			refused <- struct{}{}
			return status.Error(codes.FailedPrecondition, "process 7 has it")
		}
		return nil
	})
	w.end("p")
	<-refused
	w.replaceAttachment("a", "second")
	before := len(d.history())
	w.pod("q", "a")
	for range 3 {
		<-refused
	}
	if calls := d.history()[before:]; strings.Contains(calls, " stage:") || strings.Contains(calls, "publish:") {
		t.Errorf("a Pod has got what is old: %s", calls)
	}
	d.setHook(nil)
	w.awaitCondition("q", corev1.ConditionTrue, "v-a=")
	if got := d.callsFor("h-a"); !strings.HasSuffix(got, "unstage stage publish") {
		t.Errorf("calls: %s", got)
	}
	w.endPods("q")
}
