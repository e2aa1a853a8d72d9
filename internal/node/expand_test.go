package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/mount"
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

// TestRestoredGrowsBySmallSteps: a volume is grown also if it is larger than what it was made from by less than what a
// filesystem may need for itself, and is not grown for what its filesystem needs.
func TestRestoredGrowsBySmallSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	devices := map[string]string{}
	d.mountStage = func(path string) error {
		for name, device := range devices {
			fsType, _, _ := strings.Cut(name, "-")
			if path == uses.StagingPath(w.dir, driverName, "h-"+name, "pv-"+name, false) {
				return errors.Join(os.MkdirAll(path, 0o700), unix.Mount(device, path, fsType, 0, ""))
			}
		}
		return status.Error(codes.NotFound, path)
	}
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		devices[fsType+"-short"], devices[fsType+"-fits"] = w.disk(fsType, 320, 352), w.disk(fsType, 352, 352)
	}
	d.start(t)
	w.run()
	for name := range devices {
		w.addVolume(driverName, name, func(pv *corev1.PersistentVolume) {
			pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("352Mi")}
		})
		w.must(w.client.CoreV1().PersistentVolumeClaims("ns").Patch(t.Context(), name, types.MergePatchType,
			[]byte(`{"spec":{"dataSource":{"kind":"PersistentVolumeClaim","name":"smaller"}}}`), metav1.PatchOptions{}))
		w.pod("p-"+name, name)
	}
	for name := range devices {
		w.awaitCondition("p-"+name, corev1.ConditionTrue, "v-"+name+"=")
		if strings.HasSuffix(name, "-short") {
			w.eventSaid("FileSystemResizeSuccessful", "pv-"+name+" has its new size")
		}
	}
	if got := d.history(); strings.Count(got, "expand:") != 3 {
		t.Errorf("calls: %s", got)
	}
}

// disk returns a device of some MiB with a filesystem of others.
func (w *world) disk(fsType string, filesystem, device int64) string {
	w.t.Helper()
	image := filepath.Join(w.t.TempDir(), "image")
	w.must(nil, os.WriteFile(image, nil, 0o600))
	w.must(nil, os.Truncate(image, filesystem<<20))
	loop, err := new(mount.Loops).Attach(image, false)
	w.must(nil, err)
	w.t.Cleanup(func() { _ = mount.LoopDetach(image) })
	w.t.Cleanup(w.detachAll)
	w.must(nil, mount.Format(w.t.Context(), loop, fsType))
	w.must(nil, os.Truncate(image, device<<20))
	w.must(nil, mount.LoopResize(loop))
	return loop
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

// TestGrowsLess: a claim does not say a size that its volume does not have, although the driver reports success; the
// driver is asked again, and the Pod has its volume meanwhile.
func TestGrowsLess(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	w.mountVolume()
	d.grown.Store(1<<30 - 1)
	w.must(w.client.CoreV1().PersistentVolumeClaims("ns").Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"status":{"allocatedResourceStatuses":{"storage":"NodeResizePending"}}}`), metav1.PatchOptions{}, "status"))
	w.heard("PersistentVolumeClaim", "a", "FileSystemResizeFailed", "the volume now has 1073741823 bytes", driverName)
	claim, err := w.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "a", metav1.GetOptions{})
	if w.must(nil, err); len(claim.Status.AllocatedResourceStatuses) == 0 {
		t.Errorf("the claim says that its volume has grown: %+v", claim.Status)
	}
	d.grown.Store(1 << 30)
	w.eventSaid("FileSystemResizeSuccessful", "pv-a has its new size")
}
