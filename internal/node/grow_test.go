package node

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/node/uses"
)

// TestGrow: the agent may see the claim before the volume, which was written first.
func TestGrow(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	w.mountVolume()
	w.must(w.client.CoreV1().PersistentVolumes().Patch(t.Context(), "pv-a", types.MergePatchType,
		[]byte(`{"spec":{"capacity":{"storage":"2Gi"}}}`), metav1.PatchOptions{}))
	w.must(w.client.CoreV1().PersistentVolumeClaims("ns").Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"status":{
			"allocatedResources":{"storage":"2Gi"},"allocatedResourceStatuses":{"storage":"NodeResizePending"},
			"conditions":[{"type":"FileSystemResizePending","status":"True"}]
		}}`), metav1.PatchOptions{}, "status"))
	eventually(t, func() string {
		c, err := w.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "a", metav1.GetOptions{})
		size := c.Status.Capacity[corev1.ResourceStorage]
		if err != nil || size.String() != "2Gi" || len(c.Status.AllocatedResourceStatuses) > 0 ||
			len(c.Status.Conditions) > 0 {
			return "claim says " + size.String()
		}
		return ""
	})
	if got := d.history(); strings.Count(got, "expand:h-a") != 1 {
		t.Errorf("calls: %s", got)
	}
}

// TestRestoredGrows: a volume with the data of a smaller one grows to its own size when it is first staged, however
// often it is published; one whose filesystem fits, and one without a source, do not.
func TestRestoredGrows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	t.Cleanup(w.detachAll)
	d := newFakeDriver(driverName, w.dir)
	d.mountStage = func(path string) error {
		size := "size=1m"
		if path == uses.StagingPath(w.dir, driverName, "h-fits", "pv-fits", false) {
			size = "size=1g"
		}
		return errors.Join(os.MkdirAll(path, 0o700), unix.Mount("/dev/copy", path, "tmpfs", 0, size))
	}
	d.start(t)
	w.run()
	for _, name := range []string{"short", "fits", "new"} {
		w.addVolume(driverName, name)
		if name != "new" {
			w.must(w.client.CoreV1().PersistentVolumeClaims("ns").Patch(t.Context(), name, types.MergePatchType,
				[]byte(`{"spec":{"dataSource":{"kind":"PersistentVolumeClaim","name":"smaller"}}}`), metav1.PatchOptions{}))
		}
		w.pod("p-"+name, name)
		w.pod("q-"+name, name)
	}
	w.eventSaid("FileSystemResizeSuccessful", "pv-short has its new size")
	for _, name := range []string{"short", "fits", "new"} {
		w.awaitCondition("p-"+name, corev1.ConditionTrue, "v-"+name+"=")
		w.awaitCondition("q-"+name, corev1.ConditionTrue, "v-"+name+"=")
	}
	if got := d.history(); strings.Count(got, "expand:h-short") != 1 || strings.Count(got, "expand:") != 1 {
		t.Errorf("calls: %s", got)
	}
}

// TestGrowIsRefused: a driver that cannot grow what is mounted is asked once,
// and again after the next mount.
func TestGrowIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	d.setHook(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "expand:") {
			return status.Error(codes.FailedPrecondition, "not while it is mounted")
		}
		return nil
	})
	w.run()
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	w.must(w.client.CoreV1().PersistentVolumeClaims("ns").Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"status":{"allocatedResourceStatuses":{"storage":"NodeResizePending"}}}`), metav1.PatchOptions{}, "status"))
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	w.eventSaid("FileSystemResizeFailed", "not while it is mounted")
	w.pod("q", "a")
	w.awaitCondition("q", corev1.ConditionTrue, "v-a=")
	if got := d.history(); strings.Count(got, "expand:") != 1 {
		t.Errorf("calls: %s", got)
	}
}
