package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// onDisk is a driver whose volume is a small ext4 on a loop device, staged and
// bound.
func (w *world) onDisk(d *fakeDriver) (device string) {
	w.t.Helper()
	image := filepath.Join(w.dir, "image")
	w.must(nil, os.WriteFile(image, nil, 0o600))
	w.must(nil, os.Truncate(image, 16<<20))
	device, err := new(mount.Loops).Attach(image, false)
	w.must(nil, err)
	w.t.Cleanup(func() { _ = mount.LoopDetach(image) })
	w.t.Cleanup(w.detachAll)
	w.must(nil, mount.Format(w.t.Context(), device, "ext4"))
	staging := uses.StagingPath(w.dir, driverName, "h-a", "pv-a", false)
	d.mountStage = func(at string) error { return unix.Mount(device, at, "ext4", 0, "errors=remount-ro") }
	d.mount = func(at string) error {
		w.must(nil, os.MkdirAll(at, 0o700))
		return unix.Mount(staging, at, "", unix.MS_BIND, "")
	}
	return device
}

// fillUp writes a file until its disk is full. Each write is on the disk before the
// next: what waits in memory is refused while there is room left.
func (w *world) fillUp(path string) {
	w.t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_SYNC, 0o600)
	w.must(nil, err)
	defer func() { w.must(nil, f.Close()) }()
	for _, size := range []int{1 << 20, 4 << 10} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			w.t.Fatalf("fill the disk: %v", err)
		}
	}
}

// isIll waits until the Pod's condition says that its volumes are well or not.
func (w *world) isIll(pod string, status corev1.ConditionStatus) {
	w.t.Helper()
	eventually(w.t, func() string {
		p, err := w.client.CoreV1().Pods("ns").Get(w.t.Context(), pod, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if c := cluster.PodCondition(p, volume.ConditionVolumesHealthy); c == nil || c.Status != status ||
			strings.Contains(c.Message, "are healthy") != (status == corev1.ConditionTrue) {
			return "the Pod does not say " + string(status)
		}
		return ""
	})
}

// TestTurnedReadOnly: a filesystem that has become read-only behind the agent's
// back, by the kernel that has found an error or by a person, is told at the next
// look, also of a driver that tells nothing, and so is that it is healthy again. An
// agent that is started meanwhile finds it so.
func TestTurnedReadOnly(t *testing.T) {
	t.Parallel()
	for name, turn := range map[string]func(w *world, device, staging string){
		"by the kernel": func(w *world, device, _ string) {
			w.must(nil, os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "trigger_fs_error"),
				[]byte("test"), 0o600))
		},
		"by hand": func(w *world, _, staging string) {
			w.must(nil, unix.Mount("", staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach(driverName))
			w.tune = func(o *Options) { o.TrustDrivers, o.StatsEvery = false, 10*time.Millisecond }
			d := newFakeDriver(driverName, w.dir)
			device := w.onDisk(d)
			d.start(t)
			w.run()
			w.mountVolume()
			turn(w, device, uses.StagingPath(w.dir, driverName, "h-a", "pv-a", false))
			w.heard("Pod", "p", "VolumeConditionAbnormal", "has become read-only", "administrator of node n1")
			w.heard("PersistentVolumeClaim", "a", "VolumeConditionAbnormal", "has become read-only", "administrator of node n1")
			w.isIll("p", corev1.ConditionFalse)
			w.stop()
			w.forgetEvents()
			w.run()
			w.heard("Pod", "p", "VolumeConditionAbnormal", "has become read-only", "administrator of node n1")
			if name == "by hand" {
				w.must(nil, unix.Mount("", uses.StagingPath(w.dir, driverName, "h-a", "pv-a", false), "", unix.MS_REMOUNT, ""))
				w.isIll("p", corev1.ConditionTrue)
				w.eventSaid("VolumeConditionNormal", "healthy again")
			}
			w.end("p")
		})
	}
}

// TestFullVolume: a full disk is told at the next look, also of a driver that
// does not say how full its volumes are, and that there is room again.
func TestFullVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.tune = func(o *Options) { o.TrustDrivers, o.StatsEvery = false, 10*time.Millisecond }
	d := newFakeDriver(driverName, w.dir)
	w.onDisk(d)
	d.start(t)
	w.run()
	w.mountVolume()
	eventually(t, func() string {
		if s, known := w.agent.health.Of("d.example^h-a"); !known || s.Usage.Total == 0 || s.Health != "" {
			return "it is not known how full it is"
		}
		return ""
	})
	fill := filepath.Join(uses.TargetPath(w.dir, "uid-p", "pv-a", false), "fill")
	w.fillUp(fill)
	w.heard("Pod", "p", "VolumeConditionAbnormal", "it is full", "user")
	w.isIll("p", corev1.ConditionFalse)
	w.must(nil, os.Remove(fill))
	w.isIll("p", corev1.ConditionTrue)
	w.eventSaid("VolumeConditionNormal", "healthy again")
	w.end("p")
}
